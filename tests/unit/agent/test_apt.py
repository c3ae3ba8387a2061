"""git on an image that lacks it: installed for code in a repository, and for nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outlast.agent.code import ensure_git
from outlast.code.record import CodeRecord

# Installs a program, as apt would, unless the mirror is silent.
APT = """#!/bin/sh
echo "$*" >> {folder}/calls
case "$*" in
*install*) [ -e {folder}/silent ] && {{ echo "E: Unable to fetch some archives" >&2; exit 100; }}
    echo '#!/bin/sh' > {folder}/git && chmod +x {folder}/git ;;
esac
"""
REPOSITORY = CodeRecord(kind="git", url="https://example.org/a.git", ref="main")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("outlast.agent.apt._PAUSE_S", 0.0)
    (tmp_path / "apt-get").write_text(APT.format(folder=tmp_path))
    (tmp_path / "apt-get").chmod(0o755)
    os.symlink("/bin/chmod", tmp_path / "chmod")
    return tmp_path


@pytest.mark.skipif(os.geteuid() != 0, reason="outlast installs programs only as root")
def test_git_is_installed_once_for_code_in_a_repository(programs: Path) -> None:
    reported: list[str] = []
    ensure_git(CodeRecord(), reported.append)
    assert reported == []
    for _ in range(2):
        ensure_git(REPOSITORY, reported.append)
    assert reported == ["installing git, because this image lacks it"]
    assert (programs / "calls").read_text().splitlines()[-1].endswith("install --no-install-recommends git")


@pytest.mark.skipif(os.geteuid() != 0, reason="outlast installs programs only as root")
def test_a_mirror_that_does_not_answer_is_named(programs: Path) -> None:
    (programs / "silent").touch()
    with pytest.raises(OSError, match="`apt-get` cannot install git: E: Unable to fetch"):
        ensure_git(REPOSITORY, lambda _: None)


def test_a_machine_without_apt_reports_that_git_is_missing_later(programs: Path) -> None:
    (programs / "apt-get").unlink()
    ensure_git(REPOSITORY, lambda _: None)
    assert not (programs / "git").exists()
