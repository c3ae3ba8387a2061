"""An installation with the core packages only, made from the files of this environment: no package index is needed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import outlast


def core_only(folder: Path, *, python: str = sys.executable) -> Path:
    """Create the environment and return the path of its `outlast`. `python` has the version of this one."""
    subprocess.run([python, "-m", "venv", "--without-pip", "--symlinks", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in core_distributions():
        found = distribution(name)
        tops = {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            # Copies: a machine with a separate root sees this folder only.
            source = Path(str(found.locate_file(top)))
            if source.is_dir():
                shutil.copytree(source, packages / top, dirs_exist_ok=True)
            else:
                shutil.copy(source, packages / top)
    (packages / "outlast.pth").write_text(f"{Path(outlast.__file__).parents[1]}\n")
    command = folder / "bin" / "outlast"
    command.write_text(f"#!{folder}/bin/python\nimport sys\nfrom outlast.cli.main import main\nsys.exit(main())\n")
    command.chmod(0o755)
    return command


def core_distributions() -> set[str]:
    """Return the packages that outlast requires without any extra, and those that they require."""
    found: set[str] = set()
    waiting = list(_required("outlast"))
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _required(name)
    return found


def _required(name: str) -> Iterator[str]:
    for line in distribution(name).requires or ():
        needed = re.split(r"[^A-Za-z0-9._-]", line)[0]
        if "extra ==" in line:
            continue
        try:
            distribution(needed)
        except PackageNotFoundError:
            continue  # for another platform or Python
        yield needed


def environment(root: Path) -> dict[str, str]:
    """Return the variables of a user with an empty home and without credentials."""
    (root / "home").mkdir(exist_ok=True)
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(root / "home"),
        "OUTLAST_WORKSPACE": str(root / "workspace"),
        "OUTLAST_LOCAL_CLOUD": str(root / "cloud"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_GCE_CHECK": "true",
    }
