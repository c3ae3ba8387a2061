"""From here to a machine: what arrives, what stays here, what goes."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.integration.sync.far import Far, Syncing, left_behind
from tests.support.home import Home
from tests.support.waiting import eventually


def git(home: Home, *argv: str) -> None:
    variables = {**home.environment, "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a"}
    variables["GIT_COMMITTER_EMAIL"] = "a@b"
    subprocess.run(["git", *argv], cwd=home.project, env=variables, check=True, capture_output=True)


def test_ignored_files_and_secrets_are_not_sent(home: Home, far: Far) -> None:
    git(home, "init", "-q")
    for name in ("train.py", "sub/deep/model.py", "sub/notes.log", "run.log", "sub/keep.log", "own.txt", ".env"):
        home.write(name, name)
    home.write(".gitignore", "*.log\n")
    home.write("sub/.gitignore", "!keep.log\n")
    home.write(".outlastignore", "own.txt\n")
    answer = home.outlast("sync", "dev:project")
    assert answer.returncode == 0, answer.stderr
    assert far.files("project") == {
        *("train.py", "sub/deep/model.py", "sub/keep.log"),
        *(".gitignore", "sub/.gitignore", ".outlastignore"),
    }
    assert "`.env`" in answer.stderr


def test_a_second_sync_sends_only_changed_files(home: Home, far: Far) -> None:
    home.write("a.py", "a")
    home.write("b.py", "b")
    home.outlast("sync", "dev:project")
    home.write("b.py", "B")  # the same size, within the same second
    answer = home.outlast("sync", "dev:project", "--json")
    assert '"sent": 1' in answer.stdout, answer.stdout
    assert far.has("project/b.py", "B")


def test_every_kind_of_save_arrives(home: Home, far: Far) -> None:
    home.write("train.py", "0")
    syncing = Syncing(home, "dev:project")
    syncing.until("copied")
    # As editors save: in place, by renaming another file over it, through a backup.
    home.write("train.py", "in place")
    syncing.until("arrived", path="train.py", bytes=8)
    home.write("train.py~", "renamed").rename(home.project / "train.py")
    eventually(lambda: far.has("project/train.py", "renamed"), what="a rename")
    os.rename(home.project / "train.py", home.project / "old.py")
    home.write("train.py", "again")
    eventually(lambda: far.has("project/train.py", "again") and far.has("project/old.py", "renamed"), what="a backup")
    # An unusual name, a bit, a link, a folder that is moved in.
    strange = "sp ace\nümlaut'\"$(x).py"
    home.write(strange, "strange")
    syncing.until("arrived", path=strange)
    os.chmod(home.project / "old.py", 0o755)
    syncing.until("arrived", path="old.py")
    os.symlink("old.py", home.project / "link.py")
    syncing.until("arrived", path="link.py")
    outside = home.root / "outside"
    (outside / "inner").mkdir(parents=True)
    (outside / "inner" / "x.py").write_text("x")
    shutil.move(outside, home.project / "moved")
    eventually(lambda: far.has("project/moved/inner/x.py", "x"), what="a folder that was moved in")
    assert strange in far.files("project")
    assert far.sh("cd project && readlink link.py && test -x old.py && echo yes") == "old.py\nyes\n"
    code, argv = syncing.stop()
    assert code == 0
    assert "all files are in dev:" in argv
    assert not left_behind(home)


@pytest.mark.full
def test_a_burst_and_a_huge_file_arrive_while_small_saves_go_on(home: Home, far: Far) -> None:
    home.write("a.py", "a")
    syncing = Syncing(home, "dev:project", "--delete")
    syncing.until("copied")
    (home.project / "big.bin").write_bytes(os.urandom(30 << 20))
    for number in range(1000):
        home.write(f"many/{number % 10}/f{number}.py", str(number))
    home.write("a.py", "after")
    eventually(lambda: far.has("project/a.py", "after"), what="the small one")
    eventually(lambda: len(far.files("project/many")) == 1000, within_s=60.0, what="the burst")
    want = subprocess.run(["sha256sum", "big.bin"], cwd=home.project, capture_output=True, text=True, check=True).stdout
    eventually(lambda: far.sh("cd project && sha256sum big.bin || true") == want, within_s=60.0, what="the huge one")
    shutil.rmtree(home.project / "many")
    eventually(lambda: far.files("project") == {"a.py", "big.bin"}, within_s=60.0, what="the end of the many")
    assert far.sh("ls project") == "a.py\nbig.bin\n"
    # 130 if it was stopped before it heard that the last of it had arrived.
    assert syncing.stop()[0] in (0, 130)


def test_without_delete_no_file_is_deleted(home: Home, far: Far) -> None:
    home.write("a.py", "a")
    home.write("b.py", "b")
    syncing = Syncing(home, "dev:project")
    syncing.until("copied")
    (home.project / "a.py").unlink()
    home.write("b.py", "bb")
    syncing.until("arrived", path="b.py", bytes=2)
    assert far.files("project") == {"a.py", "b.py"}


@pytest.mark.full
def test_delete_removes_only_synced_files(home: Home, far: Far) -> None:
    home.write("a.py", "a")
    home.write("sub/b.py", "b")
    assert home.outlast("sync", "dev:project", "--delete").returncode == 0
    far.write("project/results.txt", "not ours")
    far.write("project/sub/more.txt", "not ours")
    (home.project / "a.py").unlink()
    shutil.rmtree(home.project / "sub")
    assert home.outlast("sync", "dev:project", "--delete").returncode == 0
    assert far.files("project") == {"results.txt", "sub/more.txt"}


def test_a_file_that_becomes_a_folder_and_back_arrives(home: Home, far: Far) -> None:
    home.write("thing", "file")
    syncing = Syncing(home, "dev:project", "--delete")
    syncing.until("copied")
    (home.project / "thing").unlink()
    home.write("thing/inner.py", "folder")
    eventually(lambda: far.has("project/thing/inner.py", "folder"), what="the folder")
    shutil.rmtree(home.project / "thing")
    home.write("thing", "file again")
    eventually(lambda: far.has("project/thing", "file again"), what="the file")


def test_a_changed_ignore_rule_applies_at_once(home: Home, far: Far) -> None:
    home.write(".gitignore", "*.csv\n")
    home.write("data.csv", "1")
    syncing = Syncing(home, "dev:project")
    syncing.until("copied")
    assert far.files("project") == {".gitignore"}
    home.write(".gitignore", "*.tmp\n")
    syncing.until("arrived", path="data.csv")
    home.write("x.tmp", "x")
    home.write("y.py", "y")
    syncing.until("arrived", path="y.py")
    assert far.files("project") == {".gitignore", "data.csv", "y.py"}


@pytest.mark.full
def test_a_source_that_is_moved_away_deletes_nothing_there(home: Home, far: Far) -> None:
    home.write("a.py", "a")
    syncing = Syncing(home, str(home.project), "dev:project", "--delete", folder=home.root)
    syncing.until("copied")
    home.project.rename(home.root / "elsewhere")
    assert syncing.process.wait(60.0) == 1
    assert "no longer exists" in syncing.stderr_text()
    assert far.files("project") == {"a.py"}


@pytest.mark.full
def test_without_file_events_it_polls_and_reports_why(home: Home, far: Far) -> None:
    home.write("a.py", "a")
    blocked = home.root / "blocked"
    blocked.mkdir()
    (blocked / "watchfiles.py").write_text("raise ImportError('not here')\n")
    syncing = Syncing(home, "dev:project", "--delete", PYTHONPATH=str(blocked))
    assert "outlast[sync]" in syncing.until("watching", how="polling")["why"]
    syncing.until("copied")
    home.write("b.py", "b")
    syncing.until("arrived", path="b.py")
    (home.project / "a.py").unlink()
    syncing.until("deleted", path="a.py")
    assert syncing.stop()[0] == 0


def test_a_link_on_the_machine_is_neither_followed_nor_replaced(home: Home, far: Far) -> None:
    far.sh("mkdir -p project elsewhere && ln -s ../elsewhere project/data")
    home.write("data/x.py", "x")
    home.write("a.py", "a")
    answer = home.outlast("sync", "dev:project")
    assert answer.returncode == 1
    assert "data/: a link that this sync did not create" in answer.stderr
    assert far.sh("readlink project/data; ls elsewhere") == "../elsewhere\n"
    syncing = Syncing(home, "dev:project")
    syncing.until("copied")
    home.write("data/y.py", "y")
    syncing.until("problem", path="data/y.py")
    assert far.sh("ls elsewhere") == ""
