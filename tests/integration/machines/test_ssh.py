"""ssh to a machine with a real sshd: the shared connection, pinned keys, error messages."""

from __future__ import annotations

import shlex
import shutil
import stat
import subprocess
import threading
from pathlib import Path

import pytest

from outlast.errors import BadRequest, CloudError, CloudUnreachable, Denied, NotFound, OutlastError, UsageError
from outlast.machines import sshfiles
from outlast.machines.ssh import Link
from tests.support.machines import Door
from tests.support.waiting import eventually

ODD = ["printf", "%s|", "a b", "c'd", 'e"f', "$HOME", "`id`", "*", "\\n", "", "ümläut"]


def test_a_sequence_is_quoted_for_the_remote_shell(door: Door) -> None:
    answer = Link(door.as_cloud(), "box").run(ODD)
    assert answer.stdout.decode() == "|".join(ODD[2:]) + "|"


def test_text_is_for_the_remote_shell_and_input_reaches_it(door: Door) -> None:
    link = Link(door.as_cloud(), "box")
    assert link.run("cat | tr a-z A-Z; echo $((1+1))", input=b"hello ").stdout == b"HELLO 2\n"


def test_calls_share_one_connection_also_those_of_another_process(door: Door) -> None:
    link = Link(door.as_cloud(), "box")
    one = link.run("echo $PPID; echo $SSH_CONNECTION").stdout.split(b"\n")[1]
    two = subprocess.run([*link.argv(), "echo $SSH_CONNECTION"], capture_output=True, check=True).stdout.strip()
    three = Link(door.as_cloud(), "box").run("echo $SSH_CONNECTION").stdout.strip()
    assert one == two == three


def test_a_failed_command_is_reported_with_machine_command_and_output(door: Door) -> None:
    link = Link(door.as_cloud(), "box")
    with pytest.raises(CloudError, match=r"`sh -c .*` on box exited with 3: no such luck"):
        link.run(["sh", "-c", "echo no such luck >&2; exit 3"])
    assert link.run("exit 3", check=False).returncode == 3


def test_255_of_the_command_itself_is_not_taken_for_a_lost_connection(door: Door) -> None:
    link = Link(door.as_cloud(), "box")
    assert link.run("exit 255", check=False).returncode == 255


def test_a_lost_connection_is_reported_and_the_next_call_opens_another(door: Door, home: Path) -> None:
    link = Link(door.as_cloud(), "box")

    def cut() -> None:
        eventually((home / "began").exists)
        door.cut_connections()

    threading.Thread(target=cut).start()
    with pytest.raises(CloudUnreachable, match=r"connection to box was lost during `touch .*began; sleep 20`"):
        link.run(f"touch {home}/began; sleep 20", check=False)
    assert link.run("echo back").stdout == b"back\n"


def test_a_machine_that_came_back_elsewhere_with_another_key_is_found(door: Door) -> None:
    link = Link(door.as_cloud(), "box")
    first = link.run("echo $SSH_CONNECTION").stdout
    door.cut_connections()
    door.power_off()
    door.new_host_key()
    door.boot()
    link.refresh()
    assert link.run("echo $SSH_CONNECTION").stdout != first
    assert sshfiles.machines_written() == ["box"]
    assert Path(sshfiles.known_hosts_path()).read_text() == f"outlast-box {door.reported_key}\n"


def test_a_host_key_that_the_cloud_does_not_report_is_never_accepted(door: Door) -> None:
    reported = door.reported_key
    door.power_off()
    door.new_host_key()
    door.reported_key = reported
    door.boot()
    with pytest.raises(Denied, match="another machine may have its address"):
        Link(door.as_cloud(), "box", patience_s=0.5).run("true")


def test_a_server_that_never_answers_is_reported_with_the_next_step(door: Door) -> None:
    door.power_off()
    door.running = True
    with pytest.raises(CloudUnreachable, match=r"ssh to box .* failed for 0.5 s: .*refused") as raised:
        Link(door.as_cloud(), "box", patience_s=0.5).run("true")
    assert "serial box" in raised.value.hint
    door.running = False


def test_a_stopped_machine_is_reported_with_the_clouds_message(door: Door) -> None:
    door.power_off()
    with pytest.raises(BadRequest, match="box is not running"):
        Link(door.as_cloud(), "box").run("true")


def test_a_machine_that_was_deleted_leaves_no_block_and_no_pin(door: Door) -> None:
    Link(door.as_cloud(), "box").run("true")
    door.there = False
    with pytest.raises(NotFound):
        Link(door.as_cloud(), "box").run("true")
    assert sshfiles.machines_written() == []
    assert Path(sshfiles.known_hosts_path()).read_text() == ""


def test_a_command_that_takes_too_long_times_out(door: Door) -> None:
    with pytest.raises(CloudUnreachable, match=r"`sleep 20` on box took longer than 0.2 s"):
        Link(door.as_cloud(), "box").run("sleep 20", timeout_s=0.2)


def test_rsync_copies_through_the_same_connection(door: Door, tmp_path: Path) -> None:
    if shutil.which("rsync") is None:
        pytest.skip("rsync is not installed")
    link = Link(door.as_cloud(), "box")
    (tmp_path / "a b.txt").write_text("content")
    there = tmp_path / "there"
    argv = ["rsync", "-e", link.rsync_shell(), str(tmp_path / "a b.txt"), f"{link.host}:{shlex.quote(str(there))}"]
    subprocess.run(argv, check=True)
    assert there.read_text() == "content"


def test_spaces_and_percent_signs_in_the_folder_work(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLAST_SSH_DIR", str(tmp_path / "my keys 100%"))
    link = Link(door.as_cloud(), "box")
    assert link.run("echo here").stdout == b"here\n"
    assert (tmp_path / "my keys 100%" / "id_ed25519").exists()
    link.close()


def test_the_key_is_made_once_by_many_at_once_and_is_private(home: Path) -> None:
    keys: list[str] = []
    threads = [threading.Thread(target=lambda: keys.append(sshfiles.public_key())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 8
    assert len(set(keys)) == 1
    folder = home / ".outlast" / "ssh"
    assert stat.S_IMODE((folder / "id_ed25519").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_users_own_config_gets_one_line_once_and_keeps_the_rest(door: Door, home: Path) -> None:
    own = home / ".ssh" / "config"
    own.parent.mkdir(mode=0o700)
    own.write_text("Host other\n  User me\n")
    own.chmod(0o640)
    assert sshfiles.include_in_users_config()
    assert not sshfiles.include_in_users_config()
    assert own.read_text() == f'Include "{home}/.outlast/ssh/config"\n\nHost other\n  User me\n'
    assert stat.S_IMODE(own.stat().st_mode) == 0o640
    Link(door.as_cloud(), "box").run("true")
    # As an editor would ask; the plain program reads the home of the account, hence the file by name.
    config = subprocess.run(["ssh", "-F", str(own), "-G", "outlast-box"], capture_output=True, text=True, check=True)
    assert f"port {door.port}" in config.stdout
    assert "stricthostkeychecking true" in config.stdout


def test_sockets_stay_within_what_the_system_allows(home: Path, monkeypatch: pytest.MonkeyPatch, door: Door) -> None:
    monkeypatch.setenv("OUTLAST_SSH_DIR", str(home / ("deep" * 20)))
    path = sshfiles.control_path("local", "box", door.access("box"))
    assert len(path) <= 86
    link = Link(door.as_cloud(), "box")
    assert link.run("echo here").stdout == b"here\n"
    link.close()


@pytest.mark.parametrize("name", ["two words", "-oProxyCommand=id", "a/b", "", "x\ny"])
def test_an_invalid_name_never_reaches_ssh(home: Path, door: Door, name: str) -> None:
    with pytest.raises(UsageError, match="invalid machine name"):
        Link(door.as_cloud(), name)


def test_without_an_ssh_client_the_error_has_an_install_hint(
    door: Door, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OutlastError, match="`ssh` is not installed") as raised:
        Link(door.as_cloud(), "box").run("true")
    assert "openssh-client" in raised.value.hint
