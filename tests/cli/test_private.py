"""What other users of this computer could read: command lines, and folders that outlast made."""

from __future__ import annotations

import os
import pty
import select
import stat
import subprocess
import time
from pathlib import Path

import pytest

from outlast.workspace.bucket import open_bucket
from tests.cli.console import OUTLAST, Console


def test_a_workspace_folder_that_outlast_makes_is_closed_to_others(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        open_bucket(str(tmp_path / "deep" / "workspace")).put("runs/a/b", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(tmp_path / "deep" / "workspace").st_mode) == 0o750


def test_the_link_of_the_page_is_on_no_command_line(tmp_path: Path) -> None:
    pytest.importorskip("nicegui", reason="NiceGUI, which the page is made with, is missing")
    console = Console(tmp_path)
    called = tmp_path / "called"
    # Stands where the browser would: keeps the words of its command line, as everybody could.
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
