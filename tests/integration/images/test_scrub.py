"""The scrub with real bash on a real folder: found, kept, removed and ignored files."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from outlast.images import scrub
from outlast.images.remote import paths
from outlast.images.scrub import (
    DiskMount,
    ScrubItem,
    kept,
    on_the_disk,
    parse_listing,
    parse_mounts,
    summary,
    to_remove,
)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A home as people leave it."""
    home = tmp_path / "home"
    for name, body in {
        ".ssh/authorized_keys": "key",
        ".ssh/id_ed25519": "key",
        ".bash_history": "export TOKEN=1",
        ".aws/credentials": "key",
        ".config/gcloud/credentials.db": "key",
        ".netrc": "password",
        "project/.env": "TOKEN=1",
        "project/.git/config": "url",
        "project/train.py": "print()",
        "project/service.json": '{"private_key": "-----BEGIN"}',
        "project/config.json": '{"lr": 1}',
        "certs/ca.pem": "-----BEGIN CERTIFICATE-----",
        "certs/own.pem": "-----BEGIN RSA PRIVATE KEY-----",
        "with\nnewline/.env": "TOKEN=1",
        ".outlast/build/script.sh": "true",
        ".outlast/env/bin/python": "",
        ".cache/model.bin": "weights",
    }.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(body)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp/left").write_text("x")
    return tmp_path


def bash(disk: Path, script: str, input: bytes = b"") -> bytes:
    environment = {"PATH": os.environ["PATH"], "HOME": str(disk / "home"), "TMPDIR": str(disk / "tmp")}
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-c", script], env=environment, input=input, capture_output=True, check=True
    ).stdout


def scrubbed(disk: Path, *keep: str) -> list[ScrubItem]:
    found = parse_listing(bash(disk, scrub.listing(own_root=False, build_folder=".outlast/build")))
    mounts = parse_mounts(bash(disk, "cat /proc/self/mountinfo").decode())
    finds = to_remove(found, keep=keep, home=str(disk / "home"), mounts=mounts)
    bash(disk, scrub.removal(), input=paths([find.path for find in finds]))
    return finds


def left(disk: Path) -> set[str]:
    return {str(path.relative_to(disk / "home")) for path in (disk / "home").rglob("*") if path.is_file()}


def test_keys_histories_credentials_and_repositories_go_and_the_rest_stays(disk: Path) -> None:
    scrubbed(disk)
    assert left(disk) == {
        "project/train.py",
        "project/config.json",
        "certs/ca.pem",
        ".outlast/env/bin/python",
        ".cache/model.bin",
    }
    assert list((disk / "tmp").iterdir()) == []


def test_each_has_its_reason(disk: Path) -> None:
    reasons = {os.path.relpath(find.path, disk / "home"): find.why for find in scrubbed(disk)}
    assert reasons[".ssh"] == "ssh keys"
    assert reasons["project/.git"] == "repositories"
    assert reasons["certs/own.pem"] == "private keys"
    assert reasons["project/service.json"] == "private keys"
    assert reasons[".aws"] == "cloud credentials"


def test_kept_files_stay(disk: Path) -> None:
    scrubbed(disk, "project/.git", "~/.aws")
    assert {"project/.git/config", ".aws/credentials"} <= left(disk)
    assert "project/.env" not in left(disk)


@pytest.mark.parametrize(
    ("pattern", "path", "stays"),
    [
        (".git", "/h/a/.git", True),
        (".git", "/h/a/.git/config", True),
        ("~/.aws", "/h/.aws", True),
        ("~/.aws", "/other/.aws", False),
        ("/h/a", "/h/a/.env", True),
        ("*.pem", "/h/x.pem", True),
        ("~/.ssh/config", "/h/.ssh", True),
        ("git", "/h/a/.git", False),
    ],
)
def test_patterns_name_paths(pattern: str, path: str, stays: bool) -> None:
    assert kept(path, keep=[pattern], home="/h") is stays


def test_files_in_a_removed_folder_are_not_listed_again() -> None:
    finds = [ScrubItem(path="/h/.ssh", why="a"), ScrubItem(path="/h/.ssh/id_rsa", why="b")]
    assert to_remove(finds, keep=[], home="/h", mounts=[DiskMount(point="/", whole=True)]) == finds[:1]


def test_the_summary_is_sorted_by_reason_and_limited() -> None:
    finds = [ScrubItem(path=f"/h/{number:03d}/.env", why="environment files") for number in range(100)]
    lines = summary(finds, home="/h")
    assert lines[0] == "  ~/000/.env  (environment files)"
    assert lines[-1] == "  … and 40 more"


def test_without_a_separate_root_only_the_home_is_searched(disk: Path) -> None:
    outside = disk / "outside"
    outside.mkdir()
    (outside / ".env").write_text("TOKEN=1")
    scrubbed(disk)
    assert (outside / ".env").exists()
    script = scrub.listing(own_root=False, build_folder="b")
    for place in ("/etc", "/var", "/root", "/opt"):
        assert place not in script


def test_with_a_separate_root_the_machines_identity_is_emptied() -> None:
    script = scrub.listing(own_root=True, build_folder="b")
    for place in ("/etc/machine-id", "/etc/ssh/ssh_host_*", "/var/log", "/root"):
        assert place in script
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_private_files_become_readable_except_kept_ones_and_the_home_stays_safe_for_sshd(disk: Path) -> None:
    home = disk / "home"
    home.chmod(0o700)
    (home / "project").chmod(0o700)
    (home / "project/train.py").chmod(0o600)
    (home / ".ssh").chmod(0o700)
    (home / ".ssh/id_ed25519").chmod(0o600)
    (home / "odd [x]*").mkdir(mode=0o700)
    bash(disk, scrub.opening([str(home)], shared=[str(home)], skip=[str(home / ".ssh"), str(home / "odd [x]*")]))
    assert mode(home) == 0o755
    assert mode(home / "project") & 0o075 == 0o075
    assert mode(home / "project/train.py") & 0o064 == 0o064
    assert not mode(home / "project/train.py") & 0o111
    assert (mode(home / ".ssh"), mode(home / ".ssh/id_ed25519"), mode(home / "odd [x]*")) == (0o700, 0o600, 0o700)


def test_folders_for_installed_software_are_opened_unless_they_are_on_another_disk() -> None:
    mounts = parse_mounts(MOUNTS + "28 22 8:3 /team/data /data rw - ext4 /dev/sdc1 rw\n")
    opened = scrub.to_open(["/etc/tool.conf", "data", "/opt"], own_root=True, home="/h", mounts=mounts)
    assert opened == ["/h", "/opt", "/srv", "/usr/local", "/mnt", "/etc/tool.conf"]
    assert scrub.foreign_mounts(mounts, home="/h") == ["/tmp/workspace", "/tmp/a/b", "/team", "/home", "/data"]
    assert scrub.to_open(["/opt"], own_root=False, home="/h", mounts=mounts) == ["/h"]


MOUNTS = """\
22 1 0:30 / / rw - overlay overlay rw
23 22 0:31 / /tmp rw - tmpfs tmpfs rw
24 23 8:1 /srv/team/workspace /tmp/workspace rw - ext4 /dev/sda1 rw
25 23 8:1 /folder\\040with\\040blanks /tmp/a/b rw - ext4 /dev/sda1 rw
26 22 8:2 / /team rw - ext4 /dev/sdb1 rw
27 22 8:1 /people/me /home rw - ext4 /dev/sda1 rw
"""


@pytest.mark.parametrize(
    ("path", "removed"),
    [
        ("/h/.ssh", True),
        ("/var/log/dpkg.log", True),
        ("/tmp/left", True),
        # A folder of another computer or machine, a path in it, and its parent.
        ("/tmp/workspace", False),
        ("/tmp/workspace/.env", False),
        ("/tmp/a", False),
        ("/tmp/a/b/.git", False),
        ("/team/.env", False),
        ("/home/.ssh", False),
        ("/tmp/workspace-2", True),
    ],
)
def test_only_files_on_the_machines_own_disk_are_removed(path: str, removed: bool) -> None:
    assert on_the_disk(path, parse_mounts(MOUNTS), home="/h") is removed


def test_a_home_that_is_a_folder_of_another_file_system_is_scrubbed() -> None:
    assert on_the_disk("/home/.ssh", parse_mounts(MOUNTS), home="/home/.disk")
