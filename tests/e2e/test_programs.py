"""Misbehaving programs end with the documented outcome and reason."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.home import COUNTER, Home, processes_mentioning


@pytest.mark.full
def test_a_program_that_ignores_sigterm_is_killed_before_the_deadline_and_resumes(home: Home) -> None:
    home.write(
        "deaf.py",
        """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
path = os.path.join(os.environ["OUTLAST_CHECKPOINT_DIR"], "n")
if os.environ["OUTLAST_RESUME"] == "1":
    print("resumed", open(path).read(), flush=True); sys.exit(0)
open(path, "w").write("41")
print("ready", flush=True)
while True: time.sleep(0.1)
""",
    )
    home.cloud.set_zone("local2-b", grace_s=3)
    process = home.start("run", "--", "python3", "deaf.py")
    home.until(lambda: home.workspace.runs() and len(home.state().checkpoints) > 0, "a checkpoint")
    home.outlast("preempt", "last")
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    assert "resumed 41" in output
    first = home.state().attempts[0]
    assert (first.outcome, first.exit_code) == ("preempted", 137)


@pytest.mark.full
def test_exit_code_0_after_sigterm_is_not_finished(home: Home) -> None:
    home.write(
        "polite.py",
        """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
if os.environ["OUTLAST_ATTEMPT"] == "2":
    print("really done", flush=True); sys.exit(0)
print("ready", flush=True)
while True: time.sleep(0.1)
""",
    )
    output = home.preempt_when_ready(home.start("run", "--", "python3", "polite.py"))
    assert "really done" in output
    assert home.state().attempts[0].outcome == "preempted"


def test_a_program_that_reports_done_after_a_notice_is_finished(home: Home) -> None:
    home.write(
        "done.py",
        """
import os, signal, sys, time
def leave(*_):
    open(os.environ["OUTLAST_DONE_FILE"], "w").write("{}"); sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
while True: time.sleep(0.1)
""",
    )
    home.preempt_when_ready(home.start("run", "--", "python3", "done.py"))
    # The successor may have been placed; it never starts, and its machine is released.
    assert [a.outcome for a in home.state().attempts if a.started_at] == ["finished"]
    assert home.machines() == []


def test_daemons_of_a_program_are_killed(home: Home) -> None:
    home.write(
        "daemons.sh",
        """
for i in 1 2 3; do setsid sleep 300 & done
(setsid bash -c 'trap "" TERM HUP; (sleep 301 &) ; sleep 302' &)
echo forked
""",
    )
    answer = home.outlast("run", "--", "bash", "daemons.sh")
    assert answer.returncode == 0, answer.stderr
    assert "forked" in answer.stdout
    assert home.machines() == []
    home.until(lambda: not processes_mentioning(str(home.root / "cloud")), "end of the daemons")


@pytest.mark.full
def test_output_of_100_mb_is_logged_to_the_last_byte(home: Home) -> None:
    home.write("loud.py", "import sys\nline = 'x' * 999 + '\\n'\nfor _ in range(100_000): sys.stdout.write(line)\n")
    answer = home.outlast("run", "--quiet", "--", "python3", "loud.py", timeout_s=100)
    assert answer.returncode == 0, answer.stderr
    assert len(answer.stdout) == 100_000_000
    logs = home.outlast("logs", "last")
    assert len(logs.stdout) == 100_000_000


@pytest.mark.full
def test_a_hang_is_reported_as_a_crash(home: Home) -> None:
    home.write("hang.py", "import time\nprint('then nothing', flush=True)\nwhile True: time.sleep(60)\n")
    answer = home.outlast("run", "--hang-after", "1s", "--crashes", "2", "--", "python3", "hang.py")
    assert answer.returncode not in (0, 2)
    state = home.state()
    assert state.ending == "failed"
    assert [a.outcome for a in state.attempts] == ["hung", "hung"]
    assert "no sign of progress" in answer.stderr
    assert home.machines() == []


@pytest.mark.full
def test_repeated_crashes_fail_with_the_exit_code_of_the_command(home: Home) -> None:
    home.write("crash.py", "import sys\nprint('boom', flush=True)\nsys.exit(42)\n")
    answer = home.outlast("run", "--", "python3", "crash.py")
    assert answer.returncode == 42
    state = home.state()
    assert state.ending == "failed"
    assert [a.outcome for a in state.attempts] == ["crashed"] * 3
    assert "crashed 3 times" in answer.stderr
    assert "exited with 42" in answer.stderr


def test_the_same_traceback_on_a_second_machine_ends_the_run(home: Home) -> None:
    home.write("wrong.py", "import time\nprint('begin', flush=True)\nprint({}['lr'])\n")
    answer = home.outlast("run", "--", "python3", "wrong.py")
    assert answer.returncode == 1
    state = home.state()
    assert len(state.attempts) == 2
    assert state.why == "the same error on two machines: KeyError: 'lr' (wrong.py, line 3)"
    assert state.attempts[0].why.endswith("KeyError: 'lr' (wrong.py, line 3)")


def test_a_kill_without_a_notice_counts_as_a_crash(home: Home) -> None:
    home.write("killed.sh", "kill -9 $$\n")
    answer = home.outlast("run", "--crashes", "1", "--", "bash", "killed.sh")
    assert answer.returncode == 137
    assert home.state().attempts[0].outcome == "killed"


@pytest.mark.full
def test_preemptions_without_progress_are_slowed_down(home: Home) -> None:
    home.write("idle.py", "import time\nprint('ready', flush=True)\nwhile True: time.sleep(0.1)\n")
    process = home.start("run", "--set", "limits.no_progress=3", "--", "python3", "idle.py")
    for number in range(1, 4):
        home.until(
            lambda n=number: home.workspace.runs() and len(home.state().attempts) == n and home.state().current,
            f"attempt {number}",
        )
        home.outlast("preempt", "last", "--no-notice")
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 6, output
    assert "no new checkpoint in 3 attempts" in output
    assert "checkpoint" in output.split("hint:")[-1]


def test_a_missing_command_is_reported(home: Home) -> None:
    answer = home.outlast("run", "--crashes", "1", "--", "no-such-program", "--flag")
    assert answer.returncode == 127
    assert "no-such-program" in answer.stderr


@pytest.mark.full
def test_keep_on_failure_keeps_the_machine_of_a_crashed_run(home: Home) -> None:
    home.write("crash.py", "import sys\nsys.exit(1)\n")
    answer = home.outlast("submit", "--crashes", "1", "--keep-on-failure", "3s", "--", "python3", "crash.py")
    assert answer.returncode == 0, answer.stderr
    home.until(lambda: home.state().ending == "failed", "failure")
    assert [m.status for m in home.machines()] == ["running"]
    home.until(lambda: home.state().closed, "the end of the time limit")
    assert home.machines() == []


@pytest.mark.full
def test_a_shell_pipeline_passes_the_signal_to_its_program(home: Home) -> None:
    home.write(
        "save.py",
        """
import os, signal, sys, time
path = os.path.join(os.environ["OUTLAST_CHECKPOINT_DIR"], "n")
if os.path.exists(path): print("resumed", open(path).read(), flush=True); sys.exit(0)
def leave(*_): open(path, "w").write("saved on sigterm"); sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
while True: time.sleep(0.1)
""",
    )
    home.write("outlast.toml", 'command = "echo before; python3 save.py; echo after"\n')
    output = home.preempt_when_ready(home.start("run"))
    assert "resumed saved on sigterm" in output


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_is_named_in_the_reason(home: Home) -> None:
    cloud = home.root / "cloud"
    cloud.mkdir(exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(cloud)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount here: {mounted.stderr.decode().strip()}")
    try:
        home.write("fill.py", "file = open('big', 'wb', 0)\nwhile True: file.write(b'x' * 65536)\n")
        answer = home.outlast("run", "--crashes", "1", "--", "python3", "fill.py")
        assert answer.returncode == 1, answer.stderr
        assert "No space left" in answer.stdout
        assert "disk is full" in answer.stderr
        assert home.machines() == []
    finally:
        try:
            home.clean()
        finally:
            subprocess.run(["umount", "-l", str(cloud)], check=False)


@pytest.mark.full
def test_a_full_workspace_delays_a_run_and_does_not_end_it(home: Home, tmp_path: Path) -> None:
    """The store is read-only for a while; the run continues when it is writable again."""
    if os.geteuid() == 0 and shutil.which("chattr") is None:
        pytest.skip("root writes to read-only folders; needs chattr")
    home.write("slow.py", "import time\nfor i in range(30): print('line', i, flush=True); time.sleep(0.05)\n")
    process = home.start("run", "--", "python3", "slow.py")
    home.until(lambda: home.workspace.runs() and "line 3" in home.log(), "start")
    logs = home.root / "workspace" / "runs" / home.only_run() / "logs" / "1"
    frozen = subprocess.run(["chattr", "+i", str(logs)], capture_output=True, check=False)
    if frozen.returncode:
        logs.chmod(0o500)
        if os.access(logs, os.W_OK):
            process.kill()
            pytest.skip("this file system cannot refuse root")
    try:
        home.until(lambda: processes_mentioning(str(home.root / "cloud")) != [], "life")
    finally:
        subprocess.run(["chattr", "-i", str(logs)], capture_output=True, check=False)
        logs.chmod(0o700)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    assert "line 29" in output


@pytest.mark.full
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files are listed only on Linux")
def test_an_open_log_beside_the_checkpoints_does_not_delay_commits(home: Home) -> None:
    """Like TensorBoard's log, in the folder that many frameworks use for both."""
    log = 'import os; log = open(os.environ["OUTLAST_CHECKPOINT_DIR"] + "/train.log", "a", 1); log.write("begun\\n")\n'
    home.write("train.py", log + COUNTER.replace('print("count"', 'log.write(f"{count}\\n"); print("count"'))
    process = home.start("run", "--no-pull", "--", "python", "train.py", "150", "0.1")
    home.until(lambda: home.workspace.runs() and home.state().checkpoints, "a checkpoint")
    assert home.outlast("preempt", "last", "--no-notice").returncode == 0
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    assert len(home.state().attempts) == 2
    assert home.log().count("resumed at 0\n") == 1


@pytest.mark.full
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files are listed only on Linux")
@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_an_open_database_is_committed_as_a_checkpoint(home: Home, journal: str) -> None:
    """Like Optuna's studies: each trial is a transaction, and the connection is never closed."""
    home.write(
        "search.py",
        f"""
import os, sqlite3, time
study = sqlite3.connect(os.environ["OUTLAST_CHECKPOINT_DIR"] + "/study.db")
study.execute("PRAGMA journal_mode = {journal}")
study.execute("CREATE TABLE IF NOT EXISTS trial (number INTEGER PRIMARY KEY, value REAL)")
[[count]] = study.execute("SELECT count(*) FROM trial")
print("resumed at", count, flush=True)
while count < 60 or os.environ["OUTLAST_ATTEMPT"] == "1":
    study.execute("INSERT INTO trial VALUES (?, ?)", (count, time.time()))
    study.commit()
    count += 1
    time.sleep(0.1)
[row] = study.execute("SELECT count(*), max(number) FROM trial")
print("done", *row, *study.execute("PRAGMA integrity_check").fetchone(), flush=True)
""",
    )
    process = home.start("run", "--no-pull", "--", "python", "search.py")
    home.until(lambda: home.workspace.runs() and len(home.state().checkpoints) > 1, "two checkpoints")
    assert home.outlast("preempt", "last", "--no-notice").returncode == 0
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    assert len(home.state().attempts) == 2
    assert home.log().count("resumed at 0\n") == 1
    rows, last = map(int, home.log().split("done ")[1].split()[:2])
    assert last == rows - 1
    assert home.log().rstrip().endswith("ok")


@pytest.mark.full
def test_the_log_of_the_run_has_the_reason_of_a_missing_commit(home: Home) -> None:
    """The console of the machine is deleted with the machine."""
    home.write(
        "train.py",
        r"""
import os, time
folder = os.environ["OUTLAST_CHECKPOINT_DIR"].encode()
open(folder + b"/bad\xff.pt", "w").write("x")
time.sleep(2)
print("done", flush=True)
""",
    )
    assert home.outlast("run", "--", "python3", "train.py").returncode == 0
    result = [line for line in home.log().splitlines() if line.startswith("outlast: checkpoint not committed: ")]
    assert len(result) == 1
    assert "bad" in result[0]
