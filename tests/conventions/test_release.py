"""The release is consistent: one version, every licence named, each extra tested alone."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import outlast
from tests.conventions.sources import ROOT

NOTICE = (ROOT / "NOTICE").read_text(encoding="utf-8")


def project() -> dict[str, Any]:
    with open(ROOT / "pyproject.toml", "rb") as file:
        found: dict[str, Any] = tomllib.load(file)["project"]
    return found


def packages() -> list[tuple[str, str]]:
    """Extra and package, of all that users may install."""
    table = project()
    asked = {"": table["dependencies"], **table["optional-dependencies"]}
    return [
        (extra, found[0])
        for extra, wanted in asked.items()
        if extra not in ("dev", "docs")
        for each in wanted
        if (found := re.match(r"[A-Za-z0-9._-]+", each))
    ]


def release_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "tools" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_is_one_version_and_the_changelog_begins_with_it() -> None:
    heading = next(
        line for line in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines() if line[:3] == "## "
    )
    assert project()["version"] == outlast.__version__ == heading.split()[1]


@pytest.mark.parametrize(("extra", "package"), packages())
def test_the_licence_of_every_package_is_named(extra: str, package: str) -> None:
    assert re.search(rf"^    {re.escape(package)} .*\b{extra}$", NOTICE, re.MULTILINE | re.IGNORECASE) or (
        not extra and f"    {package} " in NOTICE
    )


def test_every_extra_is_installed_alone_by_the_release_tool() -> None:
    tool = release_tool()
    assert set(tool.extras()) <= set(tool.WORKS)


def test_run_all_includes_every_benchmark() -> None:
    text = (ROOT / "benchmarks" / "run_all.py").read_text(encoding="utf-8")
    for path in (ROOT / "benchmarks").glob("*.py"):
        if path.name != "run_all.py" and "\ndef main(" in path.read_text(encoding="utf-8"):
            assert f'"{path.name}"' in text, f"benchmarks/run_all.py leaves {path.name} out"


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
def test_the_demo_of_a_fresh_clone_installs_the_core_only(tmp_path: Path) -> None:
    def commands(target: str) -> str:
        argv = ["make", "--dry-run", target, f"VENV={tmp_path / 'none'}"]
        return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    demo, test = commands("demo"), commands("test")
    assert "--editable ." in demo
    for full in ("tools/packages.sh", "--requirement requirements-dev.lock"):
        assert full not in demo
        assert full in test
