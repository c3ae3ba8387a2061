"""On the local cloud, too, a project with a lock or a list of requirements gets its packages, built once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.home import Home
from tests.support.wheels import index_of, write_wheel

PROGRAM = """
import os, sys, greeting, friend
print("prefix", sys.prefix, os.environ["VIRTUAL_ENV"] == sys.prefix)
"""


def _project(home: Home) -> Path:
    wheels = home.root / "wheels"
    write_wheel(wheels, "friend")
    write_wheel(wheels, "greeting", requires=("friend",))
    home.environment |= index_of(wheels)
    home.write("requirements.txt", "outlast\ngreeting\n")
    home.write("train.py", PROGRAM)
    return wheels


def test_requirements_are_installed_once_and_then_need_no_index(home: Home) -> None:
    _project(home)
    first = home.outlast("run", "--", "python", "train.py")
    assert first.returncode == 0, first.stdout + first.stderr
    cache = home.root / "home/.outlast/cache/environments"
    assert f"prefix {cache}/" in first.stdout
    assert "True" in first.stdout
    assert "2 packages" in first.stderr
    assert "building" in first.stderr
    assert "environment: requirements.txt" in home.log()


@pytest.mark.full
def test_the_second_run_is_served_from_the_disk(home: Home) -> None:
    wheels = _project(home)
    assert home.outlast("run", "--", "python", "train.py").returncode == 0
    shutil.rmtree(wheels)
    second = home.outlast("run", "--", "python", "train.py")
    assert second.returncode == 0, second.stdout + second.stderr
    assert "cached on disk" in second.stderr


@pytest.mark.full
def test_programs_pip_and_outlast_itself_come_with_the_environment(home: Home) -> None:
    _project(home)
    write_wheel(home.project / "extra", "latecomer")
    line = (
        "greeting-program && pip install --no-index ./extra/latecomer-1.0-py3-none-any.whl && python -m pip list"
        " && python -c 'import latecomer, outlast; print(latecomer.NAME, outlast.__name__)'"
    )
    answer = home.outlast("run", "--", "bash", "-c", line)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "program of greeting" in answer.stdout
    assert "latecomer outlast" in answer.stdout
    if home.cloud.mode in ("root", "userns"):
        again = home.outlast("run", "--", "python", "-c", "import latecomer")
        assert "ModuleNotFoundError" in again.stdout + again.stderr, "an installation must stay on its machine"


def test_the_packages_of_this_computer_are_used_on_request_and_without_such_files(home: Home) -> None:
    _project(home)
    answer = home.outlast("run", "--environment", "host", "--", "python", "-c", "import sys; print(sys.prefix)")
    assert answer.returncode == 0, answer.stderr
    assert ".outlast/cache" not in answer.stdout
    (home.project / "requirements.txt").unlink()
    home.write("pyproject.toml", '[project]\nname = "x"\nversion = "1"\ndependencies = ["greeting"]\n')
    answer = home.outlast("run", "--", "python", "-c", "import sys; print(sys.prefix)")
    assert answer.returncode == 0, answer.stderr
    assert ".outlast/cache" not in answer.stdout


def test_a_package_that_no_index_has_is_reported_before_anything_is_launched(home: Home) -> None:
    _project(home)
    home.write("requirements.txt", "no-such-package\n")
    answer = home.outlast("submit", "--", "python", "train.py")
    assert answer.returncode == 2, answer.stdout + answer.stderr
    assert "requirements.txt: resolving" in answer.stderr
    assert "no-such-package" in answer.stderr
    assert home.workspace.runs() == []


def test_a_conda_file_without_conda_is_refused_before_anything_is_launched(home: Home) -> None:
    home.write("environment.yml", "name: x\ndependencies: [numpy]\n")
    answer = home.outlast("submit", "--environment", "environment.yml", "--", "true", PATH="/usr/bin:/bin")
    assert answer.returncode == 2, answer.stdout + answer.stderr
    assert "neither micromamba nor conda" in answer.stderr
    assert home.workspace.runs() == []
    # Without a request for it, machines on this computer use the packages of this computer.
    assert home.outlast("submit", "--", "true").returncode == 0


def test_the_environment_is_recorded_with_the_run(home: Home) -> None:
    _project(home)
    run = home.outlast("submit", "--", "python", "train.py").stdout.strip()
    record = home.workspace.request(run).code.environment
    assert record is not None
    assert record.packages == 2
    lock = home.workspace.bucket.get(record.lock_key).decode()
    assert "greeting==1.0" in lock
    assert "--hash=sha256:" in lock
    assert "outlast" not in lock
    shown = json.loads(home.outlast("show", run, "--json").stdout)
    assert shown
