"""Programs use the Python environment that is active at submission, not the one of outlast."""

from __future__ import annotations

import os
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from outlast.supervisor.boot import environments
from tests.support.home import Home


def test_the_active_virtual_environment_is_used(home: Home) -> None:
    activated = home.root / "theirs"
    venv.create(activated, symlinks=True)
    packages = sysconfig.get_path("purelib", vars={"base": str(activated)})
    Path(packages, "only_there.py").write_text("print('found')")
    path = f"{activated / 'bin'}{os.pathsep}{os.environ['PATH']}"
    # `setup` may add packages, on the machine only.
    command = f"touch {packages}/added.py && python -c 'import only_there, added, sys; print(sys.prefix)'"
    answer = home.outlast("run", "--", "bash", "-c", command, PATH=path)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert answer.stdout.splitlines()[:2] == ["found", str(activated)]
    if home.cloud.mode in ("root", "userns"):
        assert not Path(packages, "added.py").exists()


def test_the_base_of_an_environment_is_included_under_both_names(tmp_path: Path) -> None:
    real, named, environment = tmp_path / "python-3.12.1", tmp_path / "python-3.12", tmp_path / "project" / ".venv"
    for folder in (real / "bin", environment / "bin", tmp_path / "conda" / "conda-meta", tmp_path / "plain" / "bin"):
        folder.mkdir(parents=True)
    named.symlink_to(real)
    (environment / "pyvenv.cfg").write_text(f"home = {named}/bin\nversion = 3.12.1\n")
    path = [environment / "bin", tmp_path / "plain" / "bin", tmp_path / "conda" / "bin", "bin", "", "/bin"]
    found = environments(os.pathsep.join(map(str, path)))
    assert found == tuple(map(str, (environment, real, named, tmp_path / "conda")))


@pytest.mark.parametrize("home", ["~/bin", "nowhere", ""])
def test_a_python_in_a_home_folder_does_not_expose_the_home(tmp_path: Path, home: str) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "pyvenv.cfg").write_text(f"home = {os.path.expanduser(home)}\n")
    assert os.path.expanduser("~") not in environments(f"{tmp_path}/bin")


def test_the_environment_of_outlast_itself_is_one_of_them() -> None:
    assert os.path.realpath(sys.prefix) in environments(os.path.join(sys.prefix, "bin"))
