"""Machines kept alive: real machines of the local cloud, a real sshd, real commands."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlast.clouds.local.cloud import LocalCloud
from outlast.errors import BadRequest, CloudUnreachable, Throttled, UsageError
from outlast.machines import lifecycle
from outlast.machines.keepalive import job
from outlast.machines.keepalive.loop import KeepaliveLoop
from outlast.machines.keepalive.world import KeepaliveOptions, Memory
from outlast.machines.ssh import Link
from tests.support.machines import Bench, needs_ssh
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def _ssh_is_there() -> None:
    needs_ssh()


class Watch:
    """A loop in a thread, and its reports."""

    def __init__(self, bench: Bench, options: KeepaliveOptions, name: str = "box") -> None:
        self.reports: list[str] = []
        self.stop = threading.Event()
        self.memory: Memory | None = None
        self.loop = KeepaliveLoop(bench.cloud, bench.machine_records, name, report=self.reports.append)
        self.thread = threading.Thread(target=self._life, args=(options,))
        self.thread.start()

    def _life(self, options: KeepaliveOptions) -> None:
        self.memory = self.loop.keep(options, stop=self.stop)

    def ended(self, within_s: float = 60.0) -> Memory:
        self.thread.join(within_s)
        assert not self.thread.is_alive(), "\n".join(self.reports)
        assert self.memory is not None
        return self.memory

    def reported(self, text: str) -> None:
        eventually(lambda: any(text in line for line in self.reports), within_s=40, what=f"{text!r} in {self.reports}")


@pytest.fixture
def watch(bench: Bench) -> Iterator[Callable[..., Watch]]:
    watches: list[Watch] = []

    def begin(**options: object) -> Watch:
        watches.append(Watch(bench, KeepaliveOptions(**options)))  # type: ignore[arg-type]
        return watches[-1]

    yield begin
    for each in watches:
        each.stop.set()
        each.thread.join(60)


def log(bench: Bench) -> list[str]:
    return Link(bench.cloud, "box").run("cat log 2>/dev/null; true").stdout.decode().splitlines()


def running(bench: Bench) -> bool:
    return bench.cloud.machine("box").status == "running"


@pytest.mark.full
def test_a_preempted_machine_restarts_with_its_disk_and_the_command_runs_again(
    bench: Bench, watch: Callable[..., Watch]
) -> None:
    bench.machine()
    # Odd quoting on purpose: it must arrive as it is.
    command = """printf '%s\\n' "it's $((1 + 1)) \\"x\\"  y" >> log; [ $(wc -l < log) -ge 2 ] || sleep 600"""
    loop = watch(command=command, then="leave")
    eventually(lambda: log(bench) == ['it\'s 2 "x"  y'], within_s=30)
    bench.cloud.preempt("box", notice=False)
    assert loop.ended().ending == "finished"
    assert log(bench) == ['it\'s 2 "x"  y'] * 2
    assert any("starting the machine" in line for line in loop.reports)
    assert running(bench)


@pytest.mark.full
def test_exit_code_0_after_a_notice_is_not_a_success(bench: Bench, watch: Callable[..., Watch]) -> None:
    bench.machine()
    command = "echo began >> log; [ $(wc -l < log) -ge 2 ] && exit 0; trap 'exit 0' TERM; while :; do sleep 0.1; done"
    loop = watch(command=command, then="leave")
    eventually(lambda: log(bench) == ["began"], within_s=30)
    bench.cloud.preempt("box", notice=True, grace_s=1.0)
    assert loop.ended().ending == "finished"
    assert log(bench) == ["began", "began"]
    assert loop.memory is not None
    assert loop.memory.crashes == 0


@pytest.mark.full
def test_without_capacity_machine_and_disk_move_to_another_zone(bench: Bench, watch: Callable[..., Watch]) -> None:
    bench.machine(zones=("local1-a",))
    bench.cloud.set_metadata("box", {"colour": "blue"})
    loop = watch(command="echo $(hostname) >> log; [ $(wc -l < log) -ge 2 ] || sleep 600", then="leave")
    eventually(lambda: len(log(bench)) == 1, within_s=30)
    bench.cloud.set_zone("local1-a", capacity=0)
    bench.cloud.preempt("box", notice=False)
    assert loop.ended(90).ending == "finished"
    moved = bench.cloud.machine("box")
    assert moved.zone != "local1-a"
    assert log(bench) == ["box", "box"], "the disk went with it"
    assert bench.cloud.metadata("box")["colour"] == "blue"
    assert [image.name for image in bench.cloud.images()] == ["base"], "the copy of the disk is left"
    machine_record = bench.machine_records.find("box")
    assert machine_record is not None
    assert machine_record.extra_usd > 0
    assert moved.labels["outlast-record"] == machine_record.id


@pytest.mark.full
def test_a_failed_command_is_retried_and_its_exit_code_reported(bench: Bench, watch: Callable[..., Watch]) -> None:
    bench.machine()
    memory = watch(
        command="echo x >> log; printf 'one\\nno data = none\\n\\n' >&2; exit 7", crashes=2, then="leave"
    ).ended()
    assert (memory.ending, memory.exit_code, memory.crashes) == ("failed", 7, 2)
    assert memory.why.endswith("it ended with 7: no data = none"), memory.why
    assert log(bench) == ["x", "x"]


@pytest.mark.full
def test_a_command_without_progress_is_killed_and_restarted(bench: Bench, watch: Callable[..., Watch]) -> None:
    bench.machine()
    # A child in another session must not survive it.
    command = "echo began >> log; [ $(wc -l < log) -ge 2 ] && exit 0; setsid sleep 987 & sleep 600"
    loop = watch(command=command, halt_after_s=3.0, then="leave")
    memory = loop.ended(90)
    assert (memory.ending, memory.crashes) == ("finished", 1)
    assert any("no output, no changed file and no metric" in line for line in loop.reports)
    left = Link(bench.cloud, "box").run("grep -l 987 /proc/[0-9]*/cmdline 2>/dev/null | grep -v self; true").stdout
    names = [Path(line.decode()).read_bytes() for line in left.split() if Path(line.decode()).exists()]
    assert not [name for name in names if b"sleep\x00987" in name]


@pytest.mark.full
def test_output_metrics_and_changed_files_count_as_progress(bench: Bench) -> None:
    bench.machine()
    link = Link(bench.cloud, "box")
    command = "while [ ! -e enough ]; do date +%s%N > data/file; sleep 0.2; done; sleep 600"
    link.run("mkdir data")
    assert job.start(link, "x1", 1, command, boots=0) == "started"
    first = 0.0

    def older() -> bool:
        return float(link.run("echo $(($(date +%s) - $(stat -c %Y .outlast/keep/x1/run-1/pid)))").stdout) >= 5

    eventually(older, within_s=30)
    first = job.probe(link, "x1", boots=0, halt_after_s=4.0, watch=("data",)).idle_s
    assert first < 4, "a file changed all the time"
    assert job.probe(link, "x1", boots=0, halt_after_s=4.0).alive
    link.run("touch enough")
    eventually(lambda: job.probe(link, "x1", boots=0, halt_after_s=4.0, watch=("data",)).idle_s >= 4, within_s=30)
    job.kill(link, "x1", 1, grace_s=1.0)
    after = job.probe(link, "x1", boots=0)
    assert (after.alive, after.halted) == (False, True)


def test_a_start_that_is_repeated_starts_nothing_twice(bench: Bench) -> None:
    """ssh failed after a successful start: repeating it with the same or the next number starts nothing."""
    bench.machine()
    link = Link(bench.cloud, "box")
    assert job.start(link, "x1", 1, "echo x >> log; sleep 600", boots=0) == "started"
    eventually(lambda: job.probe(link, "x1", boots=0).alive)
    assert job.start(link, "x1", 1, "echo x >> log; sleep 600", boots=0) == "claimed"
    assert job.start(link, "x1", 2, "echo x >> log; sleep 600", boots=0) == "alive"
    assert log(bench) == ["x"]
    assert job.probe(link, "x1", boots=0).number == 1


@pytest.mark.full
def test_a_start_that_worked_while_ssh_failed_is_not_repeated(
    bench: Bench, watch: Callable[..., Watch], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.machine()
    programs = tmp_path / "programs"
    programs.mkdir()
    # The real ssh, whose first start of a command is carried out, and then reports to have failed.
    (programs / "ssh").write_text(
        f"""#!/bin/sh
case "$*" in *kill-server*) first=1;; esac
{shutil.which("ssh")} "$@"
code=$?
if [ "$first" ] && mkdir {tmp_path}/failed 2>/dev/null; then echo the line broke >&2; exit 255; fi
exit $code
"""
    )
    (programs / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    loop = watch(command="echo x >> log; while [ ! -e enough ]; do sleep 0.1; done", then="leave")
    loop.reported("failed: ")
    loop.reported("the command runs")
    Link(bench.cloud, "box").run("touch enough")
    assert loop.ended().ending == "finished"
    assert log(bench) == ["x"]


@pytest.mark.full
def test_temporary_cloud_errors_are_retried(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalCloud, "traits", msgspec.structs.replace(LocalCloud.traits, keepalive_poll_s=0.02))
    bench.machine()
    bench.cloud.preempt("box", notice=False)
    eventually(lambda: bench.cloud.machine("box").status == "stopped")
    rng = random.Random(7)

    class Flaky:
        def __getattr__(self, name: str) -> Any:
            def call(*arguments: Any, **options: Any) -> Any:
                if rng.random() < 0.4:
                    raise rng.choice([Throttled, CloudUnreachable])(f"no {name} now")
                return getattr(bench.cloud, name)(*arguments, **options)

            return getattr(bench.cloud, name) if name in ("name", "traits") else call

    cloud: Any = Flaky()
    reports: list[str] = []
    KeepaliveLoop(cloud, bench.machine_records, "box", report=reports.append).keep(
        KeepaliveOptions(), stop=threading.Event(), once=True
    )
    assert running(bench)
    assert any("cannot read its state: no machine now" in line for line in reports), reports


def test_the_next_start_prevents_an_interrupted_one(bench: Bench) -> None:
    bench.machine()
    link = Link(bench.cloud, "box")
    link.run("mkdir -p .outlast/keep/x1/run-1")
    assert not job.probe(link, "x1", boots=0).went
    assert job.start(link, "x1", 2, "echo x >> log", boots=0) == "started"
    eventually(lambda: job.probe(link, "x1", boots=0).exit_code == 0)
    # The first one comes after all, late: it must not run.
    link.run("cp .outlast/keep/x1/command /dev/null; sh .outlast/keep/x1/run.sh 1")
    assert log(bench) == ["x"]


def test_a_second_process_is_refused_and_a_killed_one_is_replaced(bench: Bench) -> None:
    bench.machine()
    command = "echo x >> log; while [ ! -e enough ]; do sleep 0.1; done"
    first = bench.start("machine", "keep", "box", "--command", command, "--then", "leave")
    eventually(lambda: log(bench) == ["x"], within_s=30)
    refused = bench.outlast("machine", "keep", "box", "--command", command)
    assert refused.returncode == 5
    assert f":{first.pid} already keeps box" in refused.stderr
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    second = bench.start("machine", "keep", "box", "--command", command, "--then", "leave")
    Link(bench.cloud, "box").run("touch enough")
    assert second.wait(60) == 0
    assert log(bench) == ["x"], "the second found the command of the first, and waited for it"


@pytest.mark.full
def test_another_command_is_refused_unless_reset(bench: Bench, watch: Callable[..., Watch]) -> None:
    bench.machine()
    first = watch(command="echo one >> log; sleep 600")
    eventually(lambda: log(bench) == ["one"], within_s=30)
    first.stop.set()
    first.thread.join(30)
    loop = KeepaliveLoop(bench.cloud, bench.machine_records, "box")
    with pytest.raises(UsageError, match="kept for another command: echo one"):
        loop.keep(KeepaliveOptions(command="echo two"), stop=threading.Event())
    memory = loop.keep(KeepaliveOptions(command="echo two >> log", then="leave"), stop=threading.Event(), reset=True)
    assert memory.ending == "finished"
    assert log(bench) == ["one", "two"]


def test_a_machine_stopped_by_a_user_stays_stopped_and_a_deleted_one_ends_it(
    bench: Bench, watch: Callable[..., Watch]
) -> None:
    bench.machine()
    loop = watch()
    loop.reported("it runs")
    lifecycle.stop(bench.cloud, bench.machine_records, "box")
    loop.reported("stopped by a user")
    assert bench.cloud.machine("box").status == "stopped"
    bench.cloud.delete("box")
    assert loop.ended().ending == "gone"


def test_a_budget_stops_the_machine(bench: Bench, watch: Callable[..., Watch]) -> None:
    bench.machine()
    assert watch(command="sleep 600", budget_usd=0.0000001, then="delete").ended().ending == "budget"
    assert bench.cloud.machine("box").status == "stopped"


def test_at_the_end_the_machine_is_deleted_if_requested(bench: Bench, watch: Callable[..., Watch]) -> None:
    bench.machine()
    assert watch(command="true", then="delete").ended().ending == "finished"
    assert bench.cloud.machines() == []
    assert bench.machine_records.all() == []


@pytest.mark.full
def test_once_starts_the_machine_and_the_command_and_exits(bench: Bench) -> None:
    bench.machine()
    bench.cloud.preempt("box", notice=False)
    eventually(lambda: bench.cloud.machine("box").status == "stopped")
    answer = bench.outlast("machine", "keep", "box", "--once", "--command", "echo x >> log; sleep 600")
    assert answer.returncode == 0, answer.stderr
    assert running(bench)
    assert log(bench) == ["x"]
    again = bench.outlast("machine", "keep", "box", "--once", "--command", "echo x >> log; sleep 600")
    assert again.returncode == 0, again.stderr
    assert log(bench) == ["x"]


@pytest.mark.full
def test_detached_it_continues_without_a_terminal(bench: Bench) -> None:
    bench.machine()
    answer = bench.outlast("machine", "keep", "box", "--detach", "--then", "leave", "-c", "echo x >> log; exit 0")
    assert answer.returncode == 0, answer.stderr
    pid = int(answer.stdout)
    try:
        eventually(lambda: not Path(f"/proc/{pid}").exists(), within_s=30)
        assert "finished" in (bench.home / ".outlast" / "keep-box.log").read_text()
    finally:
        if Path(f"/proc/{pid}").exists():
            os.kill(pid, signal.SIGKILL)


def test_without_tmux_the_command_is_also_detached(bench: Bench) -> None:
    bench.machine()
    link = Link(bench.cloud, "box")
    text = job._script("head.sh", "start.sh").replace("command -v tmux", "false")
    argv = ["sh", "-c", text, "sh", "x1", "1", "0", job._script("run.sh")]
    assert link.run(argv, input=b"echo x; sleep 600").stdout == b"started\n"
    link.close()
    eventually(lambda: job.probe(link, "x1", boots=0).alive)
    assert link.run("cat .outlast/keep/x1/run-1/output").stdout == b"x\n"


def test_a_killed_machine_and_a_killed_command_are_distinguished(bench: Bench) -> None:
    bench.machine()
    link = Link(bench.cloud, "box")
    job.start(link, "x1", 1, "sleep 600", boots=0)
    eventually(lambda: job.probe(link, "x1", boots=0).alive)
    link.run("kill -KILL -$(cat .outlast/keep/x1/run-1/pid)")
    eventually(lambda: not job.probe(link, "x1", boots=0).alive)
    assert job.probe(link, "x1", boots=0).this_boot
    assert not job.probe(link, "x1", boots=1).this_boot


def test_a_machine_without_a_record_is_refused(bench: Bench) -> None:
    bench.machine()
    bench.machine_records.remove("box")
    answer = bench.outlast("machine", "keep", "box")
    assert answer.returncode == BadRequest.exit_code
    assert "was not created with `outlast machine create`" in answer.stderr


def test_a_command_ends_when_its_machine_stops_and_errors_show_its_label(bench: Bench) -> None:
    bench.machine()
    link = Link(bench.cloud, "box")
    link.run("true")
    errors: list[str] = []

    def long_command() -> None:
        try:
            link.run("touch began; sleep 600", label="a look at the command")
        except CloudUnreachable as problem:
            errors.append(problem.message)

    thread = threading.Thread(target=long_command)
    thread.start()
    eventually(
        lambda: Link(bench.cloud, "box").run("ls began").stdout == b"began\n", within_s=30, what="the command runs"
    )
    bench.cloud.preempt("box", notice=False)
    thread.join(60)
    assert len(errors) == 1
    assert "a look at the command" in errors[0]
    assert "sleep" not in errors[0]
