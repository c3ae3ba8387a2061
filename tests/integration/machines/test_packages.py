"""A machine that a user creates in a project has the project's packages, first on the PATH."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.home import Home
from tests.support.machines import needs_ssh
from tests.support.wheels import index_of, write_wheel


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Home]:
    needs_ssh()
    home = Home(tmp_path)
    wheels = tmp_path / "wheels"
    write_wheel(wheels, "greeting")
    home.environment |= index_of(wheels)
    home.write("requirements.txt", "greeting\n")
    yield home
    home.clean()


def test_shells_of_the_machine_find_the_packages(project: Home) -> None:
    made = project.outlast("machine", "create", "box", timeout_s=110)
    assert made.returncode == 0, made.stdout + made.stderr
    assert "environment: requirements.txt" in made.stderr
    shown = project.outlast("machine", "ssh", "box", "python", "-c", "import greeting; print(greeting.NAME)")
    assert shown.stdout == "greeting\n", shown.stderr
    login = project.outlast("machine", "ssh", "box", "bash -lc greeting-program")
    assert login.stdout == "program of greeting\n", login.stderr


def test_a_machine_without_packages_on_request(project: Home) -> None:
    made = project.outlast("machine", "create", "box", "--environment", "none", timeout_s=110)
    assert made.returncode == 0, made.stdout + made.stderr
    assert "environment" not in made.stderr
    shown = project.outlast("machine", "ssh", "box", "python", "-c", "import greeting")
    assert "ModuleNotFoundError" in shown.stderr
