"""An environment without packages is there before uv is; programs that call uv or pip early wait for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from outlast.code.environment import record_of
from outlast.environments.complete import complete, create_plain
from outlast.environments.install import Installer, Tools
from outlast.store.bucket import open_bucket

OURS = f"{sys.version_info.major}.{sys.version_info.minor}"


def _write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_text(f"#!/bin/sh\n{text}\n")
    draft.chmod(0o755)
    os.rename(draft, path)


def test_a_plain_environment_has_python_and_the_library(tmp_path: Path) -> None:
    environment, library = tmp_path / "environment", tmp_path / "library"
    library.mkdir()
    (library / "brought.py").write_text("NAME = 'brought'\n")
    create_plain(str(environment))
    complete(str(environment), str(tmp_path / "uv"), lambda version: [str(library)] if version == OURS else [])
    asked = "import sys, brought; print(sys.prefix, brought.NAME)"
    argv = [str(environment / "bin" / "python"), "-c", asked]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(environment), "brought"]


def test_a_call_of_uv_waits_until_it_arrives(tmp_path: Path) -> None:
    environment, uv = tmp_path / "environment", tmp_path / "kit" / "uv"
    create_plain(str(environment))
    complete(str(environment), str(uv), lambda _: [])
    argv = [str(environment / "bin" / "uv"), "pip", "list"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as early:
        assert early.poll() is None
        _write_program(uv, 'echo "called with $*"; exit 3')
        output, _ = early.communicate(timeout=300)
    assert (early.returncode, output) == (3, "called with pip list\n")
    pip = subprocess.run([str(environment / "bin" / "pip"), "list"], capture_output=True, text=True, check=False)
    assert pip.returncode == 3
    assert pip.stdout.startswith("called with pip list --python ")


def test_an_empty_environment_needs_no_uv_before_the_command_starts(tmp_path: Path) -> None:
    record = record_of("empty", lock="", file="", python=OURS, python_min="3.11")

    def not_yet() -> str:
        raise AssertionError("uv was fetched before the environment was ready")

    tools = Tools(uv=not_yet, uv_path=lambda: str(tmp_path / "uv"), library=lambda _: [])
    said: list[str] = []
    installer = Installer(open_bucket("memory://"), record, root=str(tmp_path), tools=tools, report=said.append)
    path = installer.install()
    assert installer.needs_uv
    assert os.access(os.path.join(path, "bin", "python"), os.X_OK)
    assert said == [f"environment: no packages, Python {OURS}"]


def test_a_python_that_the_machine_lacks_is_replaced_by_its_own(tmp_path: Path) -> None:
    record = record_of("empty", lock="", file="", python="3.99", python_min="3.11")
    tools = Tools(uv=lambda: "", uv_path=lambda: str(tmp_path / "uv"), library=lambda _: [])
    said: list[str] = []
    installer = Installer(open_bucket("memory://"), record, root=str(tmp_path), tools=tools, report=said.append)
    installer.install()
    assert said == [f"environment: no packages, Python {OURS}"]
