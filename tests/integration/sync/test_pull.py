"""From a machine to here: results, logs, and a run's outputs as they appear."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.machines.ssh import Link
from tests.integration.sync.far import Far, Syncing, left_behind
from tests.support.home import Home
from tests.support.waiting import eventually


def test_results_are_pulled_and_followed(home: Home, far: Far) -> None:
    far.write("out/events.tfevents", "one")
    far.write("out/deep/r.csv", "1,2")
    here = home.root / "here"
    syncing = Syncing(home, "--pull", str(here), "dev:out", "--delete")
    assert syncing.until("copied")["sent"] == 2
    far.sh("printf two >> out/events.tfevents; echo new > out/new.txt; rm out/deep/r.csv")
    eventually(lambda: _read(here / "events.tfevents") == "onetwo", what="the appended text")
    eventually(lambda: _read(here / "new.txt") == "new\n" and not (here / "deep").exists(), what="the rest")
    code, argv = syncing.stop()
    assert code == 0
    assert "all files are here" in argv
    assert not left_behind(home)


def test_pulling_deletes_only_files_that_it_pulled(home: Home, far: Far) -> None:
    far.write("out/a.txt", "a")
    here = home.root / "here"
    here.mkdir()
    (here / "mine.txt").write_text("mine")
    answer = home.outlast("sync", "--pull", "--delete", str(here), "dev:out")
    assert answer.returncode == 2
    assert "has files that this sync did not create" in answer.stderr
    assert home.outlast("sync", "--pull", str(here), "dev:out").returncode == 0
    far.sh("rm out/a.txt; echo b > out/b.txt")
    assert home.outlast("sync", "--pull", "--delete", str(here), "dev:out").returncode == 0
    assert {path.name for path in here.iterdir()} == {"mine.txt", "b.txt", ".outlast-sync"}


def test_a_link_that_leads_out_is_not_pulled(home: Home, far: Far) -> None:
    far.write("out/a.txt", "a")
    far.sh("ln -s /etc/passwd out/evil; ln -s a.txt out/good")
    here = home.root / "here"
    home.outlast("sync", "--pull", str(here), "dev:out")
    assert (here / "good").is_symlink()
    assert not (here / "evil").is_symlink()
    assert not (here / "evil").exists()


@pytest.mark.full
def test_outputs_of_a_run_appear_while_it_goes_on(home: Home) -> None:
    home.write(
        "train.py",
        "import os, time\n"
        "out, saved = os.environ['OUTLAST_OUTPUT_DIR'], os.environ['OUTLAST_CHECKPOINT_DIR']\n"
        "open(out + '/first.txt', 'w').write('1')\n"
        "open(saved + '/state', 'w').write('1')\n"
        "while not os.path.exists('go'): time.sleep(0.05)\n"
        "open(out + '/second.txt', 'w').write('2')\n",
    )
    home.start("run", "--no-pull", "--checkpoint", "saved", "--", "python3", "train.py")
    home.until(lambda: home.workspace.runs() and home.state().current, "a start")
    pulling = home.start("pull", "--watch", home.only_run(), "here")
    eventually(lambda: _read(home.project / "here" / "first.txt") == "1", within_s=30.0, what="the first output")
    assert pulling.poll() is None
    attempt = home.state().current
    assert attempt is not None
    Link(home.cloud, attempt.machine).run("touch work/go")
    assert pulling.wait(60.0) == 0
    assert _read(home.project / "here" / "second.txt") == "2"


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
