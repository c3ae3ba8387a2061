"""Which file defines the environment, and which Python it gets: rows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from outlast.environments.detect import detect
from outlast.errors import SpecError

OURS = f"{sys.version_info.major}.{sys.version_info.minor}"
LISTED = '[project]\nname = "a"\nversion = "0"\ndependencies = ["numpy"]\n'


@pytest.mark.parametrize(
    ("files", "kind", "file"),
    [
        ((), "empty", ""),
        (("requirements.txt",), "requirements", "requirements.txt"),
        (("requirements.txt", "uv.lock"), "uv", "uv.lock"),
        (("environment.yml", "pyproject.toml"), "conda", "environment.yml"),
        (("pyproject.toml",), "pyproject", "pyproject.toml"),
        (("requirements.txt", "environment.yml"), "requirements", "requirements.txt"),
    ],
)
def test_the_first_file_of_the_list_is_used(tmp_path: Path, files: tuple[str, ...], kind: str, file: str) -> None:
    for name in files:
        (tmp_path / name).write_text(LISTED if name == "pyproject.toml" else "")
    found = detect(str(tmp_path))
    assert (found.kind, found.file) == (kind, file)


def test_a_project_without_dependencies_has_an_empty_environment(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.ruff]\nline-length = 100\n")
    assert detect(str(tmp_path)).kind == "empty"


@pytest.mark.parametrize(
    ("requires", "python", "oldest"),
    [
        (">=3.9", OURS, "3.11"),
        (">=3.12,<3.13", "3.12", "3.12"),
        ("==3.13.*", "3.13", "3.13"),
        ("~=3.12", OURS if OURS >= "3.12" else "3.14", "3.12"),
        ("~=3.12.1", "3.12", "3.12"),
        (">=3.11,!=3.11.*", OURS if OURS >= "3.12" else "3.14", "3.12"),
        ("<3.12", "3.11", "3.11"),
        (">3.12.2,<=3.13", OURS if OURS in ("3.12", "3.13") else "3.13", "3.12"),
    ],
)
def test_requires_python_bounds_the_choice(tmp_path: Path, requires: str, python: str, oldest: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[project]\nname = "a"\nrequires-python = "{requires}"\n')
    found = detect(str(tmp_path))
    assert (found.python, found.python_min) == (python, oldest)


@pytest.mark.parametrize(("text", "python"), [("3.12\n", "3.12"), ("3.13.1", "3.13"), ("cpython-3.12.4", "3.12")])
def test_the_version_file_is_exact(tmp_path: Path, text: str, python: str) -> None:
    (tmp_path / ".python-version").write_text(text)
    found = detect(str(tmp_path))
    assert (found.python, found.python_min) == (python, python)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"no such file"):
        detect(str(tmp_path), wanted="requirements/gpu.txt")


def test_a_python_that_no_machine_has_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "a"\nrequires-python = "<3.9"\n')
    with pytest.raises(SpecError, match=r"allows no Python from 3\.11"):
        detect(str(tmp_path))


def test_a_broken_project_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project\n")
    with pytest.raises(SpecError, match=r"pyproject\.toml"):
        detect(str(tmp_path))


@pytest.mark.parametrize("text", ["3.99", "2.7"])
def test_a_version_that_uv_does_not_install_is_refused_with_its_file(tmp_path: Path, text: str) -> None:
    (tmp_path / ".python-version").write_text(text)
    with pytest.raises(SpecError, match=rf"\.python-version: machines cannot get Python {text}"):
        detect(str(tmp_path))
    with pytest.raises(SpecError, match=r"\[environment\] python: machines cannot get Python 4\.0"):
        detect(str(tmp_path), python="4.0")
