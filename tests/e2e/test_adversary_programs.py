"""Programs and files that challenge the agent: leftover processes, unusual names, and interrupts."""

from __future__ import annotations

import pytest

from tests.support.home import COUNTER, Home

# The first attempt stops at 10, so that its machine can be preempted at any time.
COUNTED = 'print("count", count, flush=True)'
STUCK = COUNTER.replace(
    COUNTED, COUNTED + '\n    while count == 10 and os.environ["OUTLAST_ATTEMPT"] == "1": time.sleep(0.05)'
)


@pytest.mark.full
def test_a_program_whose_daemon_keeps_printing_finishes(home: Home) -> None:
    home.write("chatty.sh", "echo first; yes noise & sleep 0.2; echo last; exit 0\n")
    answer = home.outlast("run", "--quiet", "--", "bash", "chatty.sh", timeout_s=40)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("first\n")
    assert "last\n" in answer.stdout
    assert home.machines() == []


@pytest.mark.full
def test_a_program_with_checkpoints_among_its_code_survives(home: Home) -> None:
    home.write("count.py", STUCK.replace('os.path.join(os.environ["OUTLAST_CHECKPOINT_DIR"], "count")', '"count"'))
    process = home.start("run", "--checkpoint", ".", "--", "python3", "count.py", "15", "0.02")
    home.until_counted(10)
    home.until(lambda: home.state().checkpoints, "a checkpoint")
    home.cloud.preempt(home.machines()[0].name, notice=False)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    assert home.state().attempts[1].resumed_from


@pytest.mark.full
def test_a_program_with_outputs_inside_its_checkpoints_finds_the_folder_after_a_resume(home: Home) -> None:
    home.write("count.py", STUCK)
    home.write(
        "outlast.toml",
        'command = "python3 count.py 15 0.02"\n[checkpoint]\npath = "save"\n[outputs]\npath = "save/out"\n',
    )
    process = home.start("run")
    home.until_counted(10)
    home.until(lambda: home.state().checkpoints, "a checkpoint")
    home.cloud.preempt(home.machines()[0].name, notice=False)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    assert (home.project / "outputs" / home.only_run() / "total.txt").read_text() == "15"


@pytest.mark.full
def test_outputs_of_a_lost_machine_are_kept_if_a_later_attempt_resumed_from_it(home: Home) -> None:
    home.write(
        "epochs.py",
        """
import os, time
path = os.path.join(os.environ["OUTLAST_CHECKPOINT_DIR"], "epoch")
first = int(open(path).read()) if os.path.exists(path) else 0
for epoch in range(first + 1, 4):
    open(os.path.join(os.environ["OUTLAST_OUTPUT_DIR"], f"epoch-{epoch}.txt"), "w").write("result")
    open(path, "w").write(str(epoch))
    print("epoch", epoch, flush=True)
    if epoch < 3: time.sleep(1.5)
    while epoch == 2 and os.environ["OUTLAST_ATTEMPT"] == "1": time.sleep(0.1)
""",
    )
    process = home.start("run", "--", "python3", "epochs.py")
    home.until(lambda: home.workspace.runs() and "epoch 2" in home.log(), "the second epoch")
    home.until(lambda: len(home.state().checkpoints) >= 2, "its checkpoint")
    home.cloud.preempt(home.machines()[0].name, notice=False)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    names = {path.name for path in (home.project / "outputs" / home.only_run()).iterdir()}
    assert names == {"epoch-1.txt", "epoch-2.txt", "epoch-3.txt"}


def test_unusual_output_files_stop_neither_the_run_nor_other_outputs(home: Home) -> None:
    home.write(
        "odd.py",
        r"""
import os
out = os.environ["OUTLAST_OUTPUT_DIR"].encode()
open(out + b"/bad\xff", "w").write("x")
open(out + b"/new\nline", "w").write("x")
os.mkfifo(out + b"/pipe")
os.symlink(b"nowhere", out + b"/dangling")
os.symlink(b".", out + b"/itself")
deep = out + (b"/" + b"d" * 200) * 6
os.makedirs(deep)
open(deep + b"/far", "w").write("x")
open(out + b"/good", "w").write("x")
""",
    )
    answer = home.outlast("run", "--", "python3", "odd.py")
    assert answer.returncode == 0, answer.stderr
    assert "was not copied" in answer.stdout
    names = {path.name for path in (home.project / "outputs" / home.only_run()).iterdir()}
    assert names == {"bad\\xff", "new\nline", "good"}
