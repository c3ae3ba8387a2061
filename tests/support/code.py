"""Trees, repositories and buckets of their own for every test."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from code_trees import Git

from outlast.store.bucket import Bucket
from outlast.store.folder import FolderBucket


@pytest.fixture(autouse=True)
def _no_settings_of_this_computer(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "settings"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for name in ("NAME", "EMAIL"):
        monkeypatch.setenv(f"GIT_AUTHOR_{name}", "someone@example.org")
        monkeypatch.setenv(f"GIT_COMMITTER_{name}", "someone@example.org")


@pytest.fixture
def git() -> Git:
    def run(folder: Path | str, *arguments: str) -> str:
        answer = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, check=True)
        return os.fsdecode(answer.stdout).strip()

    return run


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return FolderBucket(str(tmp_path / "workspace"))
