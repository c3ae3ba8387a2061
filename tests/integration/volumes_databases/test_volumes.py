"""The `outlast volume` commands, and runs that mount a volume."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from outlast.clouds.local.cloud import LocalCloud
from outlast.clouds.local.volumes import LocalVolumes
from outlast.errors import NotFound, OutlastError
from outlast.volumes.populate import populate
from tests.support.team import Team
from tests.support.waiting import eventually


def described(team: Team, name: str = "demos") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(team.done("volume", "show", name, "--json"))
    return found


def inside(team: Team) -> Path:
    return Path(described(team)["source"])


def own_root() -> bool:
    return LocalCloud().mode in ("root", "userns")


def test_a_day_with_a_volume(team: Team) -> None:
    assert "1000 GB in local, $0.00 a month" in team.done("volume", "create", "demos", "--size", "1TB")
    team.write("demos/a/one.txt", "1")
    team.write("demos/two.txt", "22")
    os.symlink("two.txt", team.project / "demos" / "link")
    assert "3 files copied" in team.done("volume", "populate", "demos", "demos")
    team.write("demos/two.txt", "23")
    assert "2 already existed" not in team.done("volume", "populate", "demos", "demos", "--to", "copy/of")
    rows = json.loads(team.done("volume", "ls", "demos", "--json"))
    assert [(row["name"], row["folder"]) for row in rows] == [
        ("a", True),
        ("copy", True),
        ("link", False),
        ("two.txt", False),
    ]
    assert "one.txt" in team.done("volume", "ls", "demos", "copy/of/a")
    assert "leaves the volume" in team.refused(2, "volume", "ls", "demos", "../..")
    assert os.readlink(inside(team) / "link") == "two.txt"
    assert "2000 GB" in team.done("volume", "resize", "demos", "--size", "2TB")
    assert described(team)["size_gb"] == 2000
    assert "repeat the command with --yes" in team.refused(2, "volume", "delete", "demos")
    team.done("volume", "delete", "demos", "--yes")
    assert "no volumes" in team.done("volume", "list")
    assert not any(path.is_dir() for path in (team.root / "cloud" / "volumes").iterdir())


def test_bad_input_has_specific_exit_codes(team: Team) -> None:
    team.done("volume", "create", "demos", "--size", "1GB")
    assert "already exists" in team.refused(21, "volume", "create", "demos", "--size", "1GB")
    assert "did you mean `demos`" in team.refused(20, "volume", "ls", "demo")
    assert "--size" in team.refused(2, "volume", "create", "other", "--size", "much")
    assert "NAME" in team.refused(2, "volume", "create", "Other!", "--size", "1GB")
    assert "no zone" in team.refused(5, "volume", "create", "other", "--size", "1GB", "--zone", "mars1-a").lower()
    assert "SRC" in team.refused(2, "volume", "populate", "demos", "nothing-here")
    assert "no volume is mounted" in team.refused(20, "volume", "unmount", "nowhere")
    assert [row["name"] for row in json.loads(team.done("volume", "list", "--json"))] == ["demos"]


def test_of_many_concurrent_creations_one_succeeds(team: Team) -> None:
    racers = [team.start("volume", "create", "demos", "--size", "1GB") for _ in range(5)]
    codes = sorted(racer.wait(60) for racer in racers)
    assert codes == [0, 21, 21, 21, 21]
    assert len(team.cloud.volumes.list_all()) == 1


def test_files_that_do_not_fit_are_refused_before_the_first_byte(team: Team) -> None:
    team.done("volume", "create", "demos", "--size", "1MB")
    team.write("big/file", "x" * 2_000_000)
    output = team.refused(22, "volume", "populate", "demos", "big")
    assert "outlast volume resize" in output
    assert list(inside(team).iterdir()) == []
    team.done("volume", "resize", "demos", "--size", "3MB")
    team.done("volume", "populate", "demos", "big")
    assert "holds" in team.refused(5, "volume", "resize", "demos", "--size", "1MB")


def test_a_full_disk_is_reported_and_the_copy_resumes_later(tmp_path: Path) -> None:
    """A real file system of two megabytes."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(small)], check=False)
    if mounted.returncode != 0:
        pytest.skip("only root can mount a small file system")
    try:
        source = tmp_path / "source"
        source.mkdir()
        for number in range(4):
            (source / f"{number}").write_bytes(os.urandom(1_000_000))
        from outlast.errors import VolumeFull

        with pytest.raises(VolumeFull, match="the volume is full"):
            populate(str(source), str(small), room_bytes=1e9, report=lambda _: None)
        whole = [path for path in small.iterdir() if path.stat().st_size == 1_000_000]
        assert [path.name for path in small.iterdir()] == [path.name for path in whole], "no half file has a real name"
        (source / "2").unlink()
        (source / "3").unlink()
        subprocess.run(["mount", "-o", "remount,size=8m", str(small)], check=True)
        populate(str(source), str(small), room_bytes=1e9, report=lambda _: None)
        assert (small / "0").read_bytes() == (source / "0").read_bytes()
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.full
def test_a_killed_copy_resumes(team: Team) -> None:
    team.done("volume", "create", "demos", "--size", "1GB")
    folder = team.project / "many"
    folder.mkdir()
    for number in range(3000):
        (folder / f"{number:05d}").write_bytes(number.to_bytes(4, "big") * 5000)
    place = inside(team)
    started = team.start("volume", "populate", "demos", "many")
    eventually(lambda: len(os.listdir(place)) > 50, what="the first files")
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    before = sum(path.is_file() for path in place.iterdir())
    assert before < 3000, "the copy was through before it could be killed"
    output = team.done("volume", "populate", "demos", "many")
    assert "3000 files copied" not in output
    assert sorted(os.listdir(place)) == sorted(os.listdir(folder))
    assert all((place / name).read_bytes() == (folder / name).read_bytes() for name in os.listdir(folder))


def tree(folder: Path, *, files: int) -> Path:
    for number in range(files):
        path = folder / f"{number % 5}" / f"{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(number.to_bytes(4, "big") * 2000)
    return folder


def test_two_concurrent_copies_do_not_interfere(tmp_path: Path) -> None:
    source, target = tree(tmp_path / "source", files=200), tmp_path / "target"
    (target / ".outlast-drafts-dead").mkdir(parents=True)
    (target / ".outlast-drafts-dead" / "7").write_text("of a copy that was killed")
    with ThreadPoolExecutor(3) as pool:
        copies = [
            pool.submit(populate, str(source), str(target), room_bytes=1e9, report=lambda _: None) for _ in range(3)
        ]
        assert all(copy.result().files + copy.result().same == 200 for copy in copies)
    assert sorted(os.listdir(target)) == ["0", "1", "2", "3", "4"]
    for path in source.rglob("*"):
        assert path.is_dir() or (target / path.relative_to(source)).read_bytes() == path.read_bytes()


def test_a_copy_does_not_recreate_a_deleted_volume(tmp_path: Path) -> None:
    source = tree(tmp_path / "source", files=1000)
    volumes = LocalVolumes(str(tmp_path / "cloud"))
    target = volumes.create("demos", size_gb=1.0).source

    def report(text: str) -> None:
        if "MB/s" in text:  # the first files are there
            volumes.delete("demos")

    with pytest.raises(OutlastError, match="could not copy"):
        populate(str(source), target, room_bytes=1e9, report=report)
    assert os.listdir(tmp_path / "cloud" / "volumes") == [".lock"]


PROGRAM = """
import os, sys, time
folder = sys.argv[1]
print("demos", sorted(os.listdir(folder)), flush=True)
path = os.path.join("results", "lines.txt")
with open(path, "a") as file:
    file.write("attempt " + os.environ["OUTLAST_ATTEMPT"] + "\\n")
while not os.path.exists(os.path.join(folder, "go")):
    time.sleep(0.02)
"""


def spec(path: str, more: str = "") -> str:
    command = f'command = "{sys.executable} trial.py {path}"'
    return f'name = "t"\n{command}\n{more}[volumes]\n"{path}" = "demos"\n"results" = "demos/runs/{{run}}"\n'


@pytest.mark.full
def test_every_machine_of_a_run_mounts_it_and_the_run_has_a_separate_folder(team: Team) -> None:
    team.done("volume", "create", "demos", "--size", "1GB")
    team.write("demos/two.txt", "22")
    team.done("volume", "populate", "demos", "demos")
    team.write("trial.py", PROGRAM)
    team.write("outlast.toml", spec("/data" if own_root() else "data"))
    running = team.start("run")
    eventually(lambda: team.workspace.runs() and "demos [" in team.log(), within_s=60, what="the first attempt")
    assert described(team)["runs"] == ["t-1"]
    output = team.refused(21, "volume", "delete", "demos", "--yes")
    assert "is mounted by t-1" in output
    team.done("preempt", "t-1", "--no-notice")
    place = inside(team)
    folder = (
        place / "runs" / f"{time.strftime('%Y-%m-%d', time.gmtime(team.workspace.request('t-1').submitted_at))}-t-1"
    )
    eventually(lambda: "attempt 2" in (folder / "lines.txt").read_text(), within_s=60, what="the second attempt")
    (place / "go").write_text("")
    assert running.wait(60) == 0, running.communicate()
    assert (folder / "lines.txt").read_text() == "attempt 1\nattempt 2\n"
    assert team.log().count("demos ['runs', 'two.txt']") == 2
    assert described(team)["runs"] == []
    team.done("volume", "delete", "demos", "--yes")


@pytest.mark.full
def test_a_run_that_fills_it_reports_that(team: Team) -> None:
    team.done("volume", "create", "demos", "--size", "1MB")
    team.write("trial.py", "open('data/big', 'w').write('x' * 1_500_000)\nraise OSError('no room')\n")
    limits = "[limits]\ncrashes = 1\n"
    team.write(
        "outlast.toml", f'name = "t"\ncommand = "{sys.executable} trial.py"\n{limits}[volumes]\n"data" = "demos"\n'
    )
    answer = team.outlast("run")
    assert answer.returncode != 0
    assert "the volume `demos` is full" in team.done("show", "t-1")
    assert json.loads(team.done("volume", "list", "--json"))[0]["state"] == "full"


def test_an_unreachable_volume_is_refused_before_any_launch(team: Team) -> None:
    team.done("volume", "create", "demos", "--size", "1GB", "--zone", "local1-a")
    team.write("trial.py", PROGRAM)
    team.write("outlast.toml", spec("data", '[machine]\nzones = ["local2-a"]\n'))
    output = team.refused(2, "run")
    assert "is reachable only from local1-a" in output
    assert team.workspace.runs() == []
    assert team.machines() == []
    # Where it can be reached from somewhere, it runs there, though that is not the cheapest.
    (inside(team) / "go").write_text("")
    team.write("outlast.toml", spec("data"))
    team.done("run", "--quiet")
    assert team.state().attempts[0].zone == "local1-a"


@pytest.mark.parametrize(
    ("table", "output"),
    [
        ('"/data" = "other"', "no volume `other`"),
        ('"/etc" = "demos"', "is a folder of the system"),
        ('"../up" = "demos"', "without `..`"),
        ('"data" = "demos/../../x"', "expected a folder without `..`"),
        ('"data" = "demos/{name}"', "only `{run}` is replaced"),
        ('"data" = "demos"\n"data/below" = "demos"', "cannot be inside `data`"),
        ('"outputs" = "demos"', "[outputs]"),
        ('"data" = "Demos"', "lower-case"),
    ],
)
def test_an_invalid_spec_is_reported_at_once(team: Team, table: str, output: str) -> None:
    team.done("volume", "create", "demos", "--size", "1GB")
    team.write("outlast.toml", f'name = "t"\ncommand = "true"\n[volumes]\n{table}\n')
    assert output in team.refused(2, "run")
    assert team.workspace.runs() == []


@pytest.mark.full
def test_code_at_the_mount_point_is_not_lost(team: Team) -> None:
    team.done("volume", "create", "demos", "--size", "1GB")
    team.write("data/mine.txt", "do not hide me")
    team.write("outlast.toml", 'name = "t"\ncommand = "true"\n[limits]\ncrashes = 1\n[volumes]\n"data" = "demos"\n')
    answer = team.outlast("run", timeout_s=90)
    assert answer.returncode != 0
    assert "the code has a file or folder at this path" in team.done("show", "t-1")


def test_mount_and_unmount(team: Team) -> None:
    team.done("volume", "create", "demos", "--size", "1GB")
    (inside(team) / "two.txt").write_text("22")
    output = team.done("volume", "mount", "here")
    assert "demos is at" in output
    here = team.project / "here"
    assert (here / "two.txt").read_text() == "22"
    (here / "new").write_text("3")
    assert (inside(team) / "new").read_text() == "3"
    assert described(team)["mounted"][0]["path"] == str(here)
    assert "already" in team.refused(21, "volume", "mount", "demos", "here")
    assert f"mounted at {here}" in team.refused(21, "volume", "delete", "demos", "--yes")
    (team.root / "home" / ".outlast" / "mounts" / "torn.json").write_text("{")
    team.done("volume", "unmount", "here")
    assert not os.path.lexists(here)
    assert (inside(team) / "two.txt").exists()
    team.write("full/file", "")
    assert "not an empty folder" in team.refused(21, "volume", "mount", "demos", "full")


def test_the_mount_of_a_killed_command_can_be_undone(team: Team) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    team.done("volume", "create", "demos", "--size", "1GB")
    (inside(team) / "two.txt").write_text("22")
    deadly = team.root / "bin" / "mount"
    deadly.parent.mkdir()
    deadly.write_text(f'#!/bin/sh\n{shutil.which("mount")} "$@"\nkill -9 $PPID\n')
    deadly.chmod(0o755)
    path = f"{deadly.parent}:{team.environment['PATH']}"
    assert team.outlast("volume", "mount", "demos", "here", PATH=path).returncode == -signal.SIGKILL
    here = team.project / "here"
    assert (here / "two.txt").exists()
    team.done("volume", "unmount", "here")
    assert not here.exists()
    assert str(here) not in Path("/proc/self/mounts").read_text()


@pytest.mark.full
def test_a_mount_through_sshfs_deletes_its_gateway_at_the_end(team: Team) -> None:
    if not shutil.which("sshfs") or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("sshfs or /dev/fuse cannot be used here")
    team.done("volume", "create", "demos", "--size", "1GB")
    (inside(team) / "two.txt").write_text("22")
    team.done("volume", "mount", "demos", "far", "--machine")
    far = team.project / "far"
    assert (far / "two.txt").read_text() == "22"
    (far / "new").write_text("3")
    assert (inside(team) / "new").read_text() == "3"
    machine = team.machines()[0].name
    assert machine.startswith("volume-demos-")
    team.done("volume", "unmount", "far")
    assert team.machines() == []
    with pytest.raises(NotFound):
        team.cloud.machine(machine)


@pytest.mark.full
def test_a_volume_whose_record_is_damaged_can_be_deleted(team: Team) -> None:
    team.done("volume", "create", "demos", "--size", "1GB")
    team.done("volume", "create", "demos-two", "--size", "1GB")
    folder, other = inside(team), Path(described(team, "demos-two")["source"])
    team.workspace.bucket.put("volumes/demos.json", b'{"kind": "vol')
    assert "volumes/demos.json cannot be read" in team.refused(4, "volume", "show", "demos")
    answer = team.outlast("volume", "delete", "demos", "--yes")
    assert answer.returncode == 0, answer.stderr
    assert "on local it is `demos-" in answer.stderr
    assert (folder.exists(), other.exists()) == (False, True)
    assert "demos-two" in team.done("volume", "list")
    # And one of which nothing is left but that.
    team.workspace.bucket.put("volumes/ghost.json", b"")
    answer = team.outlast("volume", "delete", "ghost", "--yes")
    assert answer.returncode == 0, answer.stderr
    assert "no cloud of this workspace has such a volume" in answer.stderr
    assert [row["name"] for row in json.loads(team.done("volume", "list", "--json"))] == ["demos-two"]


def test_deleted_volumes_stay_in_the_cost_list(team: Team) -> None:
    """The lines from which the cost of a workspace is computed."""
    from outlast.records.resources import ResourceRecord, ResourceRecords, all_resources

    records = ResourceRecords(team.workspace, "volume")
    request = ResourceRecord(
        kind="volume", name="a", id="1", cloud="gcp", there="a-1", asked_at=1000.0, usd_per_month=73.0
    )
    record = records.create(request)
    assert record.cost_usd(1000.0 + 3600.0) == pytest.approx(0.1)
    assert [one.name for one in all_resources(team.workspace)] == ["a"]
    records.remove(record)
    gone = all_resources(team.workspace)[0]
    assert gone.gone_at > 0
    assert gone.cost_usd(gone.gone_at + 1e9) == gone.cost_usd(gone.gone_at)


def test_outlast_cost_counts_it(team: Team) -> None:
    from outlast.records.resources import ResourceRecord, ResourceRecords

    team.done("volume", "create", "free", "--size", "1GB")
    hour_ago = team.workspace.clock() - 3600.0
    request = ResourceRecord(
        kind="volume", name="a", id="1", cloud="gcp", there="a-1", asked_at=hour_ago, usd_per_month=73.0
    )
    ResourceRecords(team.workspace, "volume").create(request)
    cost = json.loads(team.done("cost", "--by", "run", "--json"))
    assert cost["groups"]["a"]["causes"] == {"store": pytest.approx(0.1, rel=0.05)}
    assert [(row["kind"], row["name"], row["estimated"]) for row in cost["lines"]] == [("volume", "a", True)]
