"""Gateways with real ssh and rsync; and the script that mounts NFS, with a fake `mount`, as the kernel may lack NFS."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from outlast.errors import CloudError
from outlast.records.mounts import nfs_script
from outlast.records.resources import ResourceRecord, ResourceRecords
from outlast.volumes import gateway, lifecycle, upload
from outlast.volumes.gateway import Gateway
from tests.support.machines import needs_ssh
from tests.support.team import Team


@pytest.fixture
def record(team: Team, monkeypatch: pytest.MonkeyPatch) -> ResourceRecord:
    needs_ssh()
    monkeypatch.setenv("HOME", str(team.root / "home"))
    (team.root / "home").mkdir(exist_ok=True)
    records = ResourceRecords(team.workspace, "volume")
    made, _ = lifecycle.create(team.cloud, records, "demos", size_gb=1.0, who="ada")
    return made


def test_files_are_uploaded_through_a_temporary_machine(team: Team, record: ResourceRecord) -> None:
    source = team.root / "source"
    for number in range(40):
        path = source / f"{number % 4}" / f"file {number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(10_000 + number))
    reports: list[str] = []
    with gateway.gateway(team.cloud, team.workspace, record, report=reports.append) as (opened, link):
        assert [machine.name for machine in team.machines()] == [opened.machine]
        assert upload.upload(link, str(source), opened.path, report=reports.append)[0] == 40
        (source / "0" / "file 0").write_bytes(b"changed")
        upload.upload(link, str(source), opened.path, report=reports.append)
        assert [(name, is_folder) for name, _, is_folder in gateway.listing(link, opened.path)] == [
            (str(number), True) for number in range(4)
        ]
        with pytest.raises(CloudError, match="cannot list"):
            gateway.listing(link, f"{opened.path}/nothing")
    assert team.machines() == [], "the machine goes when it was used"
    there = Path(record.source)
    assert (there / "0" / "file 0").read_bytes() == b"changed"
    assert sum(path.is_file() for path in there.rglob("*")) == 40
    assert "40 of 40 files" in reports


def test_an_interrupted_command_deletes_its_gateway(team: Team, record: ResourceRecord) -> None:
    def interrupted() -> Gateway:
        with gateway.gateway(team.cloud, team.workspace, record, report=lambda _: None):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert team.machines() == []
    assert not team.workspace.bucket.children("machines/")


def test_the_gateway_of_a_killed_command_is_reaped_at_once(team: Team, record: ResourceRecord) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            with gateway.gateway(team.cloud, team.workspace, record, report=lambda _: None):
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    [machine] = team.machines()
    assert machine.name in team.done("reap")
    assert team.machines() == []
    assert not team.workspace.bucket.children("machines/")


# Fails as often as a file says, then succeeds; the pauses between are not waited for.
MOUNT = """#!/bin/sh
echo "$@" >> {folder}/calls
left=$(cat {folder}/left)
[ "$left" -le 0 ] && exit 0
echo $((left - 1)) > {folder}/left
echo "mount.nfs: Connection timed out" >&2
exit 32
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in {
        "mount": MOUNT.format(folder=tmp_path),
        "sleep": "#!/bin/sh\n",
        "mount.nfs": "#!/bin/sh\n",
    }.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return tmp_path


def mounted(programs: Path, *, failures: int) -> tuple[int, list[str]]:
    (programs / "left").write_text(str(failures))
    script = nfs_script("10.0.0.2:/share", str(programs / "a target"), "hard,timeo=600")
    path = f"{programs}/bin:{os.environ['PATH']}"
    done = subprocess.run(["/bin/sh", "-c", script], env={"PATH": path}, capture_output=True, text=True, check=False)
    calls = (programs / "calls").read_text().splitlines()
    return done.returncode, calls


def test_an_nfs_mount_is_retried(programs: Path) -> None:
    code, calls = mounted(programs, failures=3)
    assert code == 0
    assert calls == [f"-t nfs -o hard,timeo=600 10.0.0.2:/share {programs}/a target"] * 4


def test_an_nfs_server_that_never_answers_is_an_error(programs: Path) -> None:
    code, calls = mounted(programs, failures=100)
    assert (code, len(calls)) == (1, 8)
