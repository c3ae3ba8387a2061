"""Nothing private is readable by other users of this computer: command lines, folders of outlast."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import stat
import subprocess
import time
from pathlib import Path

import pytest

from outlast import private
from outlast.store.bucket import open_bucket
from tests.integration.cli.console import OUTLAST, Console
from tests.support.waiting import eventually


def test_a_new_workspace_folder_is_private(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        open_bucket(str(tmp_path / "deep" / "workspace")).put("runs/a/b", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(tmp_path / "deep" / "workspace").st_mode) == 0o750


def modes(folder: Path) -> dict[str, int]:
    """Return the mode of each path below the folder; paths may vanish meanwhile."""
    found = {}
    for root, folders, files in os.walk(folder):  # skips paths that vanish
        for path in [Path(root), *(Path(root, name) for name in (*folders, *files))]:
            with contextlib.suppress(FileNotFoundError):
                found[str(path.relative_to(folder))] = stat.S_IMODE(path.lstat().st_mode)
    return found


RUNS = """
name = "private"
command = "true"
[machine]
cloud = "local"
[data]
data = "file://{data}"
"""


def test_all_files_that_outlast_creates_in_the_home_are_private(tmp_path: Path) -> None:
    console = Console(tmp_path)
    (tmp_path / "home").mkdir()
    (tmp_path / "data").write_text("figures")
    (console.folder / "outlast.toml").write_text(RUNS.format(data=tmp_path / "data"))
    home = tmp_path / "home" / ".outlast"
    default = {"OUTLAST_WORKSPACE": "", "OUTLAST_LOCAL_CLOUD": "", "OUTLAST_LOCAL_MODE": "plain"}
    before = os.umask(0o022)
    try:
        run = console.well("submit", **default).strip()
        eventually(lambda: "finished" in console.well("ps", "--all", **default), within_s=120, what=f"the end of {run}")
    finally:
        os.umask(before)
    found = modes(home)
    assert found["."] == 0o700
    assert found["supervisor.log"] == 0o600
    assert found["cache/data"] == 0o700
    assert found["local"] == 0o700
    assert (home / "workspace" / "runs" / run).is_dir()


def test_a_home_with_open_permissions_is_closed_by_the_next_command(tmp_path: Path) -> None:
    console = Console(tmp_path)
    home = tmp_path / "home" / ".outlast"
    home.mkdir(parents=True)
    home.chmod(0o755)
    console.well("ps")
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_a_log_and_a_cache_with_open_permissions_are_closed_at_their_next_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    cache, log = tmp_path / ".outlast" / "cache" / "data", tmp_path / ".outlast" / "supervisor.log"
    cache.mkdir(parents=True)
    cache.chmod(0o755)
    log.write_text("before\n")
    log.chmod(0o644)
    private.folder("cache", "data")
    with private.open_log(str(log)) as file:
        file.write(b"after\n")
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert log.read_text() == "before\nafter\n"


def test_a_workspace_that_is_shared_with_a_group_stays_shared(tmp_path: Path) -> None:
    """A set-gid folder is a user's decision. If it is in their home, the group passes through `~/.outlast`."""
    console = Console(tmp_path)
    shared = tmp_path / "home" / ".outlast" / "workspace"
    shared.mkdir(parents=True)
    shared.parent.chmod(0o755)
    shared.chmod(0o2775)
    console.well("ps", OUTLAST_WORKSPACE="")
    open_bucket(str(shared)).put("runs/a/b", b"")
    assert stat.S_IMODE(shared.stat().st_mode) == 0o2775
    assert stat.S_IMODE(shared.parent.stat().st_mode) == 0o750


def test_the_link_of_the_dashboard_is_on_no_command_line(tmp_path: Path) -> None:
    pytest.importorskip("nicegui", reason="NiceGUI, which the page is made with, is missing")
    console = Console(tmp_path)
    called = tmp_path / "called"
    # A fake browser that records its command line, which every user could read.
    opener = tmp_path / "bin" / "xdg-open"
    opener.parent.mkdir()
    opener.write_text(f'#!/bin/sh\necho "$@" > {called}.new && mv {called}.new {called}\n')
    opener.chmod(0o755)
    variables = {**console.variables, "PATH": f"{opener.parent}:{console.variables['PATH']}", "TERM": "xterm"}
    master, slave = pty.openpty()
    page = subprocess.Popen(
        [OUTLAST, "ui", "--port", "0"], cwd=console.folder, env=variables, stdin=slave, stdout=slave, stderr=slave
    )
    os.close(slave)
    seen = b""
    try:
        deadline = time.monotonic() + 60
        while not called.exists():
            assert time.monotonic() < deadline, seen
            assert page.poll() is None, seen
            if select.select([master], [], [], 0.1)[0]:
                seen += os.read(master, 65536)
    finally:
        page.kill()
        page.wait()
        os.close(master)
    opened = Path(called.read_text().strip())
    assert "token" not in str(opened)
    assert stat.S_IMODE(opened.stat().st_mode) == 0o600
    link = seen.decode().split()[0]
    assert "?token=" in link
    assert link in opened.read_text()


def test_a_short_password_in_the_environment_is_refused(tmp_path: Path) -> None:
    answer = Console(tmp_path).run("ui", "--no-open", "--port", "0", OUTLAST_UI_PASSWORD="7342")
    assert answer.returncode == 2
    assert "OUTLAST_UI_PASSWORD" in answer.stderr
    assert "eight characters" in answer.stderr
    assert "7342" not in answer.stderr
