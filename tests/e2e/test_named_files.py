"""Programs whose checkpoints are files in their working folder."""

from __future__ import annotations

import pytest

from tests.support.home import Home

# Like many example scripts: a file in the working folder that is rewritten, and a log that stays open.
PLAIN = """
import os, sys, time
from names_of_checkpoints import PATH
log = open("progress.txt", "a", buffering=1)
count = int(open(PATH).read()) if os.path.exists(PATH) else 0
print("=> loaded at", count, flush=True)
while count < 60 or os.environ["OUTLAST_ATTEMPT"] == "1":
    time.sleep(0.1)
    count += 1
    with open(PATH, "w") as file: file.write(str(count))
    print("epoch", count, file=log)
    print("epoch", count, flush=True)
"""
DATABASE = """
import os, sqlite3, time
study = sqlite3.connect("study.db", isolation_level=None)
study.execute("PRAGMA journal_mode = WAL")
study.execute("CREATE TABLE IF NOT EXISTS trial (number INTEGER)")
[count] = study.execute("SELECT count(*) FROM trial").fetchone()
print("=> loaded at", count, flush=True)
while count < 60 or os.environ["OUTLAST_ATTEMPT"] == "1":
    time.sleep(0.1)
    study.execute("INSERT INTO trial VALUES (?)", [count])
    count += 1
    print("epoch", count, flush=True)
"""


def survives(home: Home, path: str, *, notice: bool) -> str:
    process = home.start("run", "--checkpoint", path, "--", "python3", "train.py")
    home.until(lambda: home.workspace.runs() and len(home.state().checkpoints) > 1, "two checkpoints")
    home.outlast("preempt", "last", *([] if notice else ["--no-notice"]))
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    assert len(home.state().attempts) == 2
    resumed_at = output.rpartition("=> loaded at ")[2].split()[0]
    assert int(resumed_at) > 1, output
    return output


@pytest.mark.full
@pytest.mark.parametrize("notice", [True, False])
def test_a_checkpoint_file_beside_the_code_is_restored_and_the_code_stays(home: Home, notice: bool) -> None:
    home.write("train.py", PLAIN)
    home.write("names_of_checkpoints.py", 'PATH = "checkpoint.pth.tar"')
    home.write("checkpoint.pth.tar", "4000")  # from an earlier training, which must not be resumed
    output = survives(home, "checkpoint.pth.tar", notice=notice)
    assert "left out of the bundle: checkpoint.pth.tar (a checkpoint of an earlier run)" in output
    assert "=> loaded at 0\n" in output


@pytest.mark.full
def test_an_open_database_beside_the_code_is_restored(home: Home) -> None:
    home.write("train.py", DATABASE)
    survives(home, "study.db", notice=False)


@pytest.mark.full
def test_a_pattern_in_a_folder_below_is_drilled(home: Home) -> None:
    home.write("names_of_checkpoints.py", 'PATH = "out/ckpt-1.pt"')
    home.write("outlast.toml", 'command = "python3 train.py"\n[checkpoint]\npath = "out/ckpt-*.pt"\n')
    # The first half is fast; then it waits for its three preemptions, however busy the computer is.
    pause = 'time.sleep(0.1 if count < 20 or int(os.environ["OUTLAST_ATTEMPT"]) > 3 else 1.0)'
    program = PLAIN.replace(' or os.environ["OUTLAST_ATTEMPT"] == "1"', "").replace("time.sleep(0.1)", pause)
    home.write("train.py", program.replace("count < 60", "count < 50"))
    answer = home.outlast("drill", timeout_s=200)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_trials_on_a_shared_machine_must_use_a_folder(home: Home) -> None:
    home.write(
        "outlast.toml",
        'command = "python3 train.py {lr}"\n[checkpoint]\npath = "model.pt"\n'
        '[sweep]\ngoal = "min:loss"\nper_machine = 2\n[sweep.params]\nlr = "log(1e-4..1e-1)"\n',
    )
    answer = home.outlast("sweep")
    assert answer.returncode == 2
    assert "[checkpoint] path: expected a folder other than `.`, because trials share a machine" in answer.stderr
    assert home.workspace.runs() == []
