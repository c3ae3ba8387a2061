"""The tasks of public guides, which users do by hand in consoles and with scripts, done with our commands only.

Each test is one guide: it prepares nothing in advance, and at its end nothing is left that is billed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from outlast.clouds.local.ssh import find_sshd
from tests.support.home import Home
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.skipif(not find_sshd(), reason="sshd is not installed: apt install openssh-server"),
    pytest.mark.skipif(not shutil.which("rsync"), reason="rsync is not installed: apt install rsync"),
]

EXAMPLES = Path(__file__).parents[3] / "examples"

# Trains for a while, keeps its step on the machine's disk, and writes a result at the end.
TRAINER = """
import pathlib, sys, time
home = pathlib.Path.home()
(home / "results").mkdir(exist_ok=True)
place = home / "results" / "step"
step = int(place.read_text()) if place.exists() else 0
print("from step", step, flush=True)
while step < int(sys.argv[1]):
    time.sleep(0.05)
    step += 1
    draft = place.with_suffix(".new")
    draft.write_text(str(step))
    draft.rename(place)
(home / "results" / "model").write_text(f"{VERSION} trained with {(home / 'cache').read_text().strip()}")
"""


def done(home: Home, *argv: str, timeout_s: float = 90.0) -> str:
    answer = home.outlast(*argv, timeout_s=timeout_s)
    assert answer.returncode == 0, f"outlast {' '.join(argv)}\n{answer.stdout}\n{answer.stderr}"
    return answer.stdout


def on(home: Home, machine: str, command: str) -> str:
    """What a command prints on the machine; nothing when it fails."""
    return home.outlast("machine", "ssh", machine, "--", command).stdout


def nothing_is_left(home: Home) -> None:
    assert json.loads(done(home, "machine", "list", "--json")) == []
    assert home.machines() == []
    assert json.loads(done(home, "reap", "--json")) == []


@pytest.mark.full
def test_the_workflow_with_a_base_machine_live_sync_and_a_keep_alive(home: Home) -> None:
    """The GCP workflow: base machine → image → new machine like it → sync → train → keep alive → download → delete."""
    done(home, "machine", "create", "base", "--spot", "--disk", "20GB")
    on(home, "base", "echo preprocessed data > ~/cache; echo secret > ~/.env; mkdir ~/.git")
    done(home, "machine", "snapshot", "base", "--family", "spectrogram", "--stop")
    # As the console's `create similar`, with the image that was just made.
    done(home, "machine", "create", "experiment", "--like", "base", "--image", "spectrogram")
    done(home, "machine", "delete", "base", "--yes")
    assert on(home, "experiment", "cat ~/cache") == "preprocessed data\n"

    home.write("train.py", "VERSION = 1\n" + TRAINER)
    syncing = home.start("sync", ".", "experiment:code", "--watch")
    eventually(lambda: "VERSION = 1" in on(home, "experiment", "cat code/train.py"), within_s=30, what="the first copy")
    home.write("train.py", "VERSION = 2\n" + TRAINER)
    eventually(
        lambda: "VERSION = 2" in on(home, "experiment", "cat code/train.py"), within_s=30, what="the save arrives"
    )

    keeping = home.start(
        "machine", "keep", "experiment", "--command", "cd code && python3 train.py 120", "--then", "stop"
    )
    eventually(lambda: int(on(home, "experiment", "cat results/step") or 0) > 5, within_s=40, what="it trains")
    home.cloud.preempt("experiment", notice=False)
    output, _ = keeping.communicate(timeout=600)
    assert keeping.returncode == 0, output
    syncing.terminate()
    syncing.wait(timeout=600)

    done(home, "machine", "start", "experiment")
    done(home, "machine", "cp", "experiment:results", "here")
    assert (home.project / "here" / "model").read_text() == "2 trained with preprocessed data"
    assert (home.project / "here" / "step").read_text() == "120"
    done(home, "machine", "delete", "experiment", "--yes")
    nothing_is_left(home)


@pytest.mark.full
def test_the_survival_guide(home: Home) -> None:
    """A custom image, a trainer with the common flags, parameters, start on boot, and preemptions in between."""
    shutil.copytree(EXAMPLES / "survival", home.project, dirs_exist_ok=True)
    home.write("image.sh", "set -e\nmkdir -p ~/tools\necho version 7 > ~/tools/version\n")
    toml = (home.project / "outlast.toml").read_text()
    recipe = '\n[image]\nname = "survival-env"\nscript = "image.sh"\ntest = ["grep 7 ~/tools/version"]\n'
    home.write("outlast.toml", toml + recipe)
    running = home.start("run", "--param", "train_steps=400", "--param", "pause=0.02")
    eventually(lambda: home.workspace.runs(), within_s=60, what="the image is built and the run submitted")
    run = home.only_run()
    eventually(lambda: home.state(run).checkpoints, within_s=60, what="the first checkpoint")
    done(home, "preempt", run)
    output, _ = running.communicate(timeout=600)
    assert running.returncode == 0, output
    state = home.state(run)
    assert state.ending == "finished"
    assert len(state.attempts) == 2
    assert state.attempts[1].resumed_from
    assert list((home.project / "outputs" / run).rglob("*"))
    # The same recipe is not built again.
    (image,) = [
        image for image in json.loads(done(home, "image", "list", "--json")) if image["family"] == "survival-env"
    ]
    assert done(home, "image", "build").strip().endswith(image["image"])
    done(home, "image", "delete", image["image"], "--yes")
    nothing_is_left(home)


@pytest.mark.full
def test_the_burst_guide(home: Home) -> None:
    """A big machine for minutes: an image, data, all cores, the model back, the machine gone."""
    home.write("data/train.csv", "".join(f"{n},{2 * n + 1}\n" for n in range(1000)))
    trainer = (
        "import csv, json, os, pathlib, sys\n"
        "if '--evaluate' in sys.argv:\n"
        "    slope, offset = json.loads(pathlib.Path(sys.argv[-1]).read_text())\n"
        "    print('predicts', slope * 10 + offset)\n"
        "    raise SystemExit\n"
        "rows = [tuple(map(float, row)) for row in csv.reader(open('data/train.csv'))]\n"
        "n, sx, sy = len(rows), sum(x for x, _ in rows), sum(y for _, y in rows)\n"
        "slope = (n * sum(x * y for x, y in rows) - sx * sy) / (n * sum(x * x for x, _ in rows) - sx * sx)\n"
        "out = pathlib.Path(os.environ['OUTLAST_OUTPUT_DIR'], 'model.json')\n"
        "out.write_text(json.dumps([slope, (sy - slope * sx) / n]))\n"
    )
    home.write("census.py", trainer)
    home.write(".gitignore", "data/\noutputs/\n")
    home.write("outlast.toml", 'name = "burst"\ncommand = "python census.py"\n[data]\n"data" = "data"\n')
    done(home, "run", "--cpus", "64+", "--on-demand", timeout_s=120)
    run = home.only_run()
    placed = home.state(run).attempts[0]
    assert placed.type.startswith("local-64")
    assert not placed.spot
    model = home.project / "outputs" / run / "model.json"
    local = subprocess.run(
        ["python3", "census.py", "--evaluate", str(model)], cwd=home.project, capture_output=True, text=True, check=True
    )
    assert local.stdout.startswith("predicts 2")
    nothing_is_left(home)


@pytest.mark.full
def test_running_on_the_cloud_by_hand(home: Home) -> None:
    """One machine by hand: log in, copy data, a larger disk and another type, a detached run, an image to share."""
    done(home, "machine", "create", "emade", "--on-demand", "--cpus", "1")
    (home.project / "dataset").mkdir()
    home.write("dataset/a.csv", "1,2,3\n")
    config = home.root / "home" / ".ssh" / "config"
    # The real scp, with the block that was written for it.
    subprocess.run(
        ["scp", "-q", "-F", str(config), "-r", str(home.project / "dataset"), "outlast-emade:"], check=True, timeout=60
    )
    assert on(home, "emade", "cat dataset/a.csv") == "1,2,3\n"
    done(home, "machine", "resize", "emade", "--disk", "40GB")
    refused = home.outlast("machine", "resize", "emade", "--type", "local-4")
    assert refused.returncode == 5
    done(home, "machine", "stop", "emade")
    (stopped,) = json.loads(done(home, "machine", "list", "--json"))
    assert stopped["status"] == "stopped"
    assert stopped["disk_gb"] == 40
    done(home, "machine", "resize", "emade", "--type", "local-4")
    done(home, "machine", "start", "emade")
    # Detached: the command continues without the terminal; a later command attaches again.
    command = "sleep 1; wc -l < dataset/a.csv > answer"
    done(home, "machine", "keep", "emade", "--command", command, "--then", "leave", "--once")
    eventually(lambda: on(home, "emade", "cat answer") == "1\n", within_s=40, what="the detached command ends")
    done(home, "machine", "keep", "emade", "--command", command, "--then", "leave")
    done(home, "machine", "snapshot", "emade", "--family", "emade", "--stop")
    done(home, "image", "share", "emade", "teammate@example.org")
    done(home, "machine", "create", "mate", "--image", "emade")
    assert on(home, "mate", "cat dataset/a.csv answer") == "1,2,3\n1\n"
    for name in ("emade", "mate"):
        done(home, "machine", "delete", name, "--yes")
    nothing_is_left(home)
