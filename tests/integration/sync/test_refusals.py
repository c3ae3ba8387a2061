"""Bad input: a clear error, the next step, and nothing done."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outlast.sync.receiver import FileReceiver, SyncRefused, forbidden, resolve
from tests.integration.sync.far import Far, left_behind
from tests.support.home import Home


@pytest.mark.full
def test_a_sync_into_a_shared_or_system_folder_is_refused(home: Home, far: Far) -> None:
    home.write("a.py", "a")
    before = far.sh("ls -A")
    for folder in ("/", "//", "/etc/cron.d", "/usr/bin/x", "/tmp", "~", ".", "a/.."):
        answer = home.outlast("sync", f"dev:{folder}", "--delete")
        assert answer.returncode == 2, answer.stderr
        assert answer.stderr.startswith("error: `"), answer.stderr
        assert "hint: use a separate folder" in answer.stderr
    assert far.sh("ls -A") == before


def test_a_link_to_such_a_folder_is_refused_as_well(home: Home, far: Far) -> None:
    home.write("a.py", "a")
    far.sh('ln -s /etc innocent; ln -s "$HOME" me')
    before = far.sh("ls -A")
    for folder in ("innocent", "innocent/x", "me"):
        answer = home.outlast("sync", f"dev:{folder}")
        assert answer.returncode == 2, answer.stderr
    assert far.sh("ls -A") == before


def test_delete_into_a_folder_with_things_of_others_is_refused(home: Home, far: Far) -> None:
    home.write("a.py", "a")
    far.write("project/theirs.txt", "theirs")
    answer = home.outlast("sync", "dev:project", "--delete")
    assert answer.returncode == 2
    assert "has files that this sync did not create" in answer.stderr
    assert far.files("project") == {"theirs.txt"}
    # Another folder of ours has its own account: it cannot delete what the first one put there.
    assert home.outlast("sync", "dev:project").returncode == 0
    other = home.root / "other"
    other.mkdir()
    (other / "b.py").write_text("b")
    answer = home.outlast("sync", str(other), "dev:project", "--delete")
    assert answer.returncode == 2
    assert far.files("project") == {"theirs.txt", "a.py"}


def test_a_machine_that_is_not_there_is_named(home: Home, far: Far) -> None:
    answer = home.outlast("sync", "missing:project")
    assert answer.returncode == 5
    assert "no machine or run named `missing`" in answer.stderr
    assert "outlast ps --all" in answer.stderr


def test_a_stopped_machine_is_named_with_the_way_to_start_it(home: Home, far: Far) -> None:
    home.cloud.stop("dev")
    home.until(lambda: home.cloud.machine("dev").status == "stopped", "the stop")
    for argv in (["sync", "dev:project"], ["tunnel", "dev", "6006"]):
        answer = home.outlast(*argv)
        assert answer.returncode == 5, answer.stderr
        assert "is stopped" in answer.stderr
        assert "outlast machine start dev" in answer.stderr


@pytest.mark.parametrize("argv", [["dev"], [":x"], ["a", "b", "dev:x"], []])
def test_invalid_destinations_are_refused(home: Home, argv: list[str]) -> None:
    answer = home.outlast("sync", *argv)
    assert answer.returncode == 2
    assert "hint:" in answer.stderr


def test_a_source_that_is_missing_or_a_file_is_refused_before_connecting(home: Home) -> None:
    home.write("file", "x")
    for source, why in (("nowhere", "does not exist"), ("file", "is not a folder")):
        answer = home.outlast("sync", source, "dev:project")
        assert answer.returncode == 2
        assert why in answer.stderr


def test_a_computer_without_rsync_or_ssh_gets_an_install_hint(home: Home, far: Far) -> None:
    home.write("a.py", "a")
    tools = home.root / "tools"
    tools.mkdir()
    for name in ("git", "ssh", "ssh-keygen", "sh", "python3"):
        (tools / name).symlink_to(Path(next(p for p in _places(name) if os.path.exists(p))))
    answer = home.outlast("sync", "dev:project", PATH=str(tools))
    assert answer.returncode == 1
    assert "`rsync` is not installed on this computer" in answer.stderr
    assert "hint: install it" in answer.stderr
    (tools / "rsync").symlink_to(next(p for p in _places("rsync") if os.path.exists(p)))
    (tools / "ssh").unlink()
    answer = home.outlast("sync", "dev:project", PATH=str(tools))
    assert answer.returncode == 1
    assert "`ssh` is not installed on this computer" in answer.stderr


def _places(name: str) -> list[str]:
    return [os.path.join(folder, name) for folder in os.environ["PATH"].split(os.pathsep)]


def test_a_run_that_has_ended_has_no_machine_to_sync_to(home: Home) -> None:
    home.run("true")
    assert home.supervise().returncode == 0
    for argv in (["sync", "last:x"], ["tunnel", "last", "6006"]):
        answer = home.outlast(*argv)
        assert answer.returncode == 2, answer.stderr
        assert "has finished; it no longer has a machine" in answer.stderr


def test_pulling_into_the_home_folder_is_refused(home: Home, far: Far) -> None:
    far.write("results/r.txt", "r")
    answer = home.outlast("sync", "--pull", home.environment["HOME"], "dev:results")
    assert answer.returncode == 2
    assert "is the home folder" in answer.stderr
    answer = home.outlast("sync", "--pull", str(home.root / "here"), "dev:nothing")
    assert answer.returncode == 2
    assert "folder `nothing` does not exist" in answer.stderr
    assert not left_behind(home)


def test_system_folders_are_refused() -> None:
    for path in ("/", "/etc", "/etc/x", "/usr", "/usr/lib/x", "/usr/local", "/proc/1", "/people", "/people/ada"):
        assert forbidden(path, "/people/ada"), path
    for path in ("/people/ada/x", "/people/bob/x", "/usr/local/x", "/srv/x", "/mnt/disk", "/dev/shm/x", "/etcetera"):
        assert not forbidden(path, "/people/ada"), path
    with pytest.raises(SyncRefused):
        resolve("/srv/../etc", "/people/ada")


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", "a//b", "", ".outlast-sync/x", "a/./b", "a\0b"])
def test_the_receiver_writes_nowhere_else(tmp_path: Path, path: str) -> None:
    store = FileReceiver(str(tmp_path / "dest"), "me")
    store.open()
    with pytest.raises(SyncRefused):
        store.put(path, b"x", 0o644, 1)
    with pytest.raises(SyncRefused):
        store.drop(path)
    store.close()
    assert sorted(os.listdir(tmp_path)) == ["dest"]


def test_the_receiver_follows_no_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("theirs")
    store = FileReceiver(str(tmp_path / "dest"), "me")
    store.open()
    os.symlink(outside, tmp_path / "dest" / "way")
    with pytest.raises(SyncRefused):
        store.put("way/x", b"ours", 0o644, 1)
    store.claim(["way/x"])
    store.drop("way/x")
    store.close()
    assert (outside / "x").read_text() == "theirs"


def test_the_list_of_created_files_survives_a_crash_and_is_per_origin(tmp_path: Path) -> None:
    store = FileReceiver(str(tmp_path), "me")
    store.open()
    store.put("a", b"a", 0o600, 1)
    store.put("b\n", b"b", 0o600, 1)
    store.drop("a")
    # No close: it was killed.
    again = FileReceiver(str(tmp_path), "me")
    assert again.owned == {"b\n"}
    other = FileReceiver(str(tmp_path), "another")
    other.open()
    assert not other.drop("b\n")
    assert (tmp_path / "b\n").exists()
