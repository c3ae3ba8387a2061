"""The parts of an environment that no lock lists: `pip`, `uv`, and outlast itself at the end of the module path.

They belong to the machine and not to the packed environment: every installation writes them again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import resources

_PIP = """\
#!/bin/sh
exec "$(dirname -- "$(realpath -- "$0")")/python" -m pip "$@"
"""
_MARK = "uv with the environment beside it"
# In the place of uv while it arrives: programs that call it early wait for it.
_LATE_UV = """\
#!/bin/sh
tries=0
until [ -x "{uv}" ]; do
    if [ "$tries" -ge 3000 ]; then
        echo "outlast: uv has not arrived from the workspace within five minutes" >&2
        exit 1
    fi
    tries=$((tries + 1))
    sleep 0.1
done
exec "{uv}" "$@"
"""


def create_plain(path: str) -> None:
    """Create an environment without packages for the Python that runs this. Raises OSError.

    uv does the same, but it takes seconds to fetch.
    """
    import venv

    venv.EnvBuilder(symlinks=True).create(path)


def complete(path: str, uv: str, library: Callable[[str], Sequence[str]]) -> None:
    """Add pip, uv and outlast to an environment; `uv` may arrive later. May be repeated. Raises OSError."""
    packages = site_packages(path)
    _add_uv(path, uv)
    _add_pip(path, packages)
    version = os.path.basename(os.path.dirname(packages)).removeprefix("python")
    _write(os.path.join(packages, "outlast.pth"), "".join(f"{folder}\n" for folder in library(version)))


def site_packages(path: str) -> str:
    """Return the folder of an environment's packages. Raises OSError if it has none."""
    lib = os.path.join(path, "lib")
    name = next((name for name in sorted(os.listdir(lib)) if name.startswith("python3")), "")
    if not name:
        raise FileNotFoundError(f"{lib} has no Python")
    return os.path.join(lib, name, "site-packages")


def _add_uv(path: str, uv: str) -> None:
    target = os.path.join(path, "bin", "uv")
    if os.path.exists(target):
        return  # the environment lists uv, or this is not the first installation
    if not os.path.exists(uv):
        _write(target, _LATE_UV.replace("{uv}", uv), executable=True)
        return
    with suppress(FileExistsError):
        try:
            os.link(os.path.realpath(uv), target)
        except OSError:
            shutil.copy2(uv, target)


def _add_pip(path: str, packages: str) -> None:
    folder = os.path.join(packages, "pip")
    main = os.path.join(folder, "__main__.py")
    text = resources.files("outlast.environments").joinpath("pip_program.py").read_text("utf-8")
    if os.path.exists(main):
        with open(main, encoding="utf-8", errors="replace") as file:
            if _MARK not in file.read(200):
                return  # the real one
    os.makedirs(folder, exist_ok=True)
    _write(os.path.join(folder, "__init__.py"), '__version__ = "25.0"\n')
    _write(main, text)
    for name in ("pip", "pip3"):
        _write(os.path.join(path, "bin", name), _PIP, executable=True)


def _write(path: str, text: str, *, executable: bool = False) -> None:
    """Write a file unless it has the content: other processes may use the environment."""
    with suppress(FileNotFoundError), open(path, encoding="utf-8", errors="replace") as file:
        if file.read() == text:
            return
    draft = f"{path}.{os.getpid()}"
    with open(draft, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(draft, 0o755 if executable else 0o644)
    os.replace(draft, path)
