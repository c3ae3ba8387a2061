"""A checkpoint that a program writes after its notice is committed, whatever the program's exit code."""

from __future__ import annotations

import pytest

from tests.support.home import Home

# Saves nothing before its notice; then writes two files and exits at once. After a resume it is done.
TRAINER = """
import os, signal, sys, time
folder = os.environ["OUTLAST_CHECKPOINT_DIR"]
path = os.path.join(folder, "weights")
if os.path.exists(path):
    print("resumed with", open(path).read(), open(os.path.join(folder, "optimizer")).read(), flush=True)
    sys.exit(0)

def save_and_leave(*_):
    for name in ("weights", "optimizer"):
        with open(os.path.join(folder, name), "w") as file:
            file.write(name)
    LEAVE

signal.signal(signal.SIGTERM, save_and_leave)
print("ready", flush=True)
while True:
    time.sleep(0.1)
"""


def run_and_preempt(home: Home, *argv: str) -> None:
    """Run the command, preempt its first machine with a notice, and wait for the end of the run."""
    process = home.start("run", "--", *argv)
    home.until(lambda: home.workspace.runs() and "ready" in home.log(), "the first attempt")
    home.cloud.preempt(home.machines()[0].name, notice=True)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output


LEAVES = {
    "sys.exit(143)": "sys.exit(143)",
    "os._exit(143)": "os._exit(143)",
    "sys.exit(200)": "sys.exit(200)",
    "dies of the signal": "signal.signal(signal.SIGTERM, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGTERM)",
}


@pytest.mark.full
@pytest.mark.parametrize("leave", LEAVES)
def test_a_save_on_sigterm_counts_whatever_the_exit_code(home: Home, leave: str) -> None:
    home.write("train.py", TRAINER.replace("LEAVE", LEAVES[leave]))
    run_and_preempt(home, "python3", "train.py")
    assert "resumed with weights optimizer" in home.log()
    assert home.state().attempts[0].unsaved == ""


@pytest.mark.full
def test_a_save_on_sigterm_counts_below_a_shell(home: Home) -> None:
    home.write("train.py", TRAINER.replace("LEAVE", "sys.exit(143)"))
    run_and_preempt(home, "bash", "-c", "python3 train.py\nexit $?")
    assert "resumed with weights optimizer" in home.log()


# The handler raises during a write to the only file, which stays incomplete.
INTERRUPTED = """
import os, signal, sys, time
path = os.path.join(os.environ["OUTLAST_CHECKPOINT_DIR"], "weights")
if os.environ["OUTLAST_ATTEMPT"] != "1":
    print("weights" if os.path.exists(path) else "no weights", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
with open(path, "w") as file:
    file.write("half")
    file.flush()
    print("ready", flush=True)
    while True:
        time.sleep(0.1)
"""


@pytest.mark.full
def test_a_write_that_the_signal_interrupted_is_not_committed_and_the_story_says_so(home: Home) -> None:
    home.write("train.py", INTERRUPTED)
    run_and_preempt(home, "python3", "train.py")
    assert "no weights" in home.log()
    assert "while it was writing" in home.state().attempts[0].unsaved
    assert "was not committed" in home.log()


# Sends SIGTERM to its agent, as systemd does. Dies of a second SIGTERM, and its helper, as a data loader, of the first.
SHUT_DOWN = TRAINER.replace(
    "def save", "import subprocess\nhelper = subprocess.Popen(['sleep', '1000'])\n\ndef save"
).replace(
    "while True:",
    """
agent = os.getppid()
while b"outlast.agent" not in open(f"/proc/{agent}/cmdline", "rb").read():
    agent = int(open(f"/proc/{agent}/stat").read().rpartition(")")[2].split()[1])
os.kill(agent, signal.SIGTERM)
while True:""",
)


@pytest.mark.full
def test_a_shutdown_of_the_machine_is_a_notice_to_the_program_alone(home: Home) -> None:
    leave = (
        "print('helper', helper.poll(), os.path.exists(os.environ['OUTLAST_NOTICE_FILE']), flush=True); sys.exit(143)"
    )
    home.write("train.py", SHUT_DOWN.replace("LEAVE", leave))
    answer = home.outlast("run", "--", "python3", "train.py")
    assert answer.returncode == 0, answer.stderr
    assert "helper None True" in home.log()
    assert "resumed with weights optimizer" in home.log()
    first = home.state().attempts[0]
    assert (first.outcome, first.unsaved) == ("preempted", "")
