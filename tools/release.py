"""Build the wheel and the sdist, and install each extra alone in a separate environment.

    .venv/bin/python tools/release.py [--only EXTRA] [--python VERSION]

Prints the size of each, and checks that its commands work. Exits with 1 if one does not. Needs a package index.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Extra → the modules that it alone must make importable. The core comes first.
WORKS = {
    "": "outlast.cli.app, outlast.agent.agent, outlast.clouds.local.cloud, outlast.trainer.training",
    "aws": "outlast.clouds.aws.client, boto3",
    "db": "outlast.clouds.sql, pymysql, pg8000",
    "docs": "sphinx, myst_parser, furo",
    "gcp": "outlast.clouds.gcp.client, google.auth.transport.urllib3",
    "notify": "outlast.notify.targets, apprise",
    "executor": "outlast.executor.executor, cloudpickle",
    "parquet": "outlast.cli.run.metrics, pyarrow",
    "plot": "outlast.cli.run.plot, plotext, matplotlib",
    "ray": "outlast.cluster.provider",
    "sweep": "outlast.sweep.study, optuna",
    "sync": "outlast.sync, watchfiles",
    "testing": "outlast.testing.scheduler, outlast.testing.cloud_conformance",
    "ui": "outlast.ui.server, nicegui",
    "yaml": "outlast.cli.init_from, yaml",
}


def extras() -> list[str]:
    """Return the extras for users; `dev` and `docs` are for contributors."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        found = tomllib.load(file)["project"]["optional-dependencies"]
    return sorted(set(found) - {"dev", "docs"})


def uv(*argv: str, **environment: str) -> None:
    subprocess.run(["uv", *argv], check=True, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)


def build(folder: str) -> tuple[str, str]:
    """Build the sdist, and the wheel from it, so that files missing in the sdist are noticed."""
    uv("build", "--quiet", "--out-dir", folder, str(ROOT))
    (wheel,) = Path(folder).glob("*.whl")
    (source,) = Path(folder).glob("*.tar.gz")
    return str(wheel), str(source)


def weight_mb(folder: str) -> float:
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()) / 1e6


def installed(package: str, extra: str, folder: str, python: Sequence[str]) -> float:
    """Install an extra, check its commands and imports, and return its size."""
    environment = os.path.join(folder, f"with-{extra or 'nothing'}")
    uv("venv", "--quiet", *python, environment)
    uv("pip", "install", "--quiet", "--python", environment, package + (f"[{extra}]" if extra else ""))
    variables = {"PATH": f"{environment}/bin:{os.environ['PATH']}", "HOME": folder}
    for argv in (["outlast", "--version"], ["outlast", "--help"], ["outlast", "doctor"]):
        subprocess.run(
            [f"{environment}/bin/{argv[0]}", *argv[1:]], check=True, env=variables, stdout=subprocess.DEVNULL
        )
    subprocess.run([f"{environment}/bin/python", "-c", f"import {WORKS[extra]}"], check=True, env=variables)
    heavy = weight_mb(f"{environment}/lib")
    shutil.rmtree(environment)
    return heavy


def as_tool(package: str, folder: str) -> None:
    """Install as `uv tool install` and `pipx install` do: a command on the path in an isolated environment."""
    own = {"UV_TOOL_DIR": f"{folder}/tools", "UV_TOOL_BIN_DIR": f"{folder}/bin"}
    uv("tool", "install", "--quiet", package, **own)
    subprocess.run([f"{folder}/bin/outlast", "--version"], check=True, stdout=subprocess.DEVNULL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="this extra (may be repeated); `core` for none")
    parser.add_argument("--python", default="", help="which Python to install for")
    options = parser.parse_args()
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    python = ["--python", options.python] if options.python else []
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        wheel, source = build(f"{folder}/dist")
        print(f"{os.path.basename(wheel)}: {os.path.getsize(wheel) / 1e6:.2f} MB")
        print(f"{os.path.basename(source)}: {os.path.getsize(source) / 1e6:.2f} MB", flush=True)
        wanted = ["" if name == "core" else name for name in options.only or ["core", *extras()]]
        for extra in wanted:
            name = f"outlast[{extra}]" if extra else "outlast"
            try:
                print(f"{name}: {installed(wheel, extra, folder, python):.0f} MB, answers", flush=True)
            except subprocess.CalledProcessError as problem:
                print(f"{name}: {problem}", flush=True)
                failed.append(name)
        if not options.only:
            print(f"from the sdist: {installed(source, '', folder, python):.0f} MB, answers", flush=True)
            as_tool(wheel, folder)
            print("as a tool: answers")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
