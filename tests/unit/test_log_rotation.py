"""Logs of background processes: bounded, private, and shared by several writers that never open them again."""

from __future__ import annotations

import multiprocessing
import os
import stat
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import eventually

from outlast.app import process_logs

WRITER = """
import sys
for number in range(int(sys.argv[2])):
    print(f"{sys.argv[1]} {number} " + "x" * 80, flush=True)
"""


def test_writers_continue_in_a_rotated_log(tmp_path: Path) -> None:
    path = tmp_path / "supervisor.log"
    with open(path, "ab") as log:
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITER, name, "4000"], stdout=log, stderr=log) for name in "abc"
        ]
    turned = 0
    while any(writer.poll() is None for writer in writers):
        turned += process_logs.rotate(str(path), max_bytes=100_000)
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert turned >= 2, "the newest three files are kept"
    assert sorted(file.name for file in tmp_path.glob("*.log*")) == [
        "supervisor.log",
        "supervisor.log.1",
        "supervisor.log.2",
        "supervisor.log.lock",
    ]
    newest = (tmp_path / "supervisor.log.1").read_text() + path.read_text()
    assert "\0" not in newest, "a writer that does not append leaves a hole"
    assert any(f"{name} 3999 " in newest for name in "abc")


def _turn(path: str, gate: str) -> None:
    eventually(lambda: os.path.exists(gate), within_s=60, what="the start")
    process_logs.rotate(path, max_bytes=4000)


def test_several_processes_rotate_a_log_once(tmp_path: Path) -> None:
    path, gate = tmp_path / "log", tmp_path / "gate"
    path.write_bytes(b"first\n" * 1000)
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_turn, args=(str(path), str(gate))) for _ in range(4)]
    for worker in workers:
        worker.start()
    gate.touch()
    for worker in workers:
        worker.join(timeout=60)
        assert worker.exitcode == 0
    assert path.read_bytes() == b""
    assert (tmp_path / "log.1").read_bytes() == b"first\n" * 1000
    assert not (tmp_path / "log.2").exists()


def test_the_last_complete_lines_of_a_log_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(100_000)))
    assert process_logs.rotate(str(path), max_bytes=10_000)
    kept = (tmp_path / "log.1").read_bytes().splitlines()
    assert kept[-1] == b"line 99999"
    assert kept[0].startswith(b"line 99")
    assert sum(map(len, kept)) < 10_000
    assert stat.S_IMODE((tmp_path / "log.1").stat().st_mode) == 0o600


def test_a_process_whose_errors_go_to_the_log_keeps_it_bounded(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x\n" * process_logs.LOG_MAX_BYTES)
    program = (
        "import sys; from outlast.app.process_logs import bound_own_log; bound_own_log(sys.argv[1]); sys.stdin.read()"
    )
    with open(path, "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=log, stderr=log
        )
    try:
        eventually(lambda: path.stat().st_size == 0, within_s=60, what="the end of the full log")
    finally:
        process.communicate()
    assert (tmp_path / "log.1").exists()
