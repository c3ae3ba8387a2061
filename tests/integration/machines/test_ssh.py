"""ssh to a machine with a real sshd: the shared connection, pinned keys, error messages."""

from __future__ import annotations

import shlex
import shutil
import stat
import subprocess
import threading
import time
from pathlib import Path

import pytest

from outlast.errors import BadRequest, CloudError, CloudUnreachable, Denied, NotFound, OutlastError, UsageError
from outlast.machines import sshfiles
from outlast.machines.ssh import Link
from tests.support.machines import SshServer
from tests.support.waiting import eventually

ODD = ["printf", "%s|", "a b", "c'd", 'e"f', "$HOME", "`id`", "*", "\\n", "", "ümläut"]


def test_a_sequence_is_quoted_for_the_remote_shell(ssh_server: SshServer) -> None:
    answer = Link(ssh_server.as_cloud(), "box").run(ODD)
    assert answer.stdout.decode() == "|".join(ODD[2:]) + "|"


def test_text_is_for_the_remote_shell_and_input_reaches_it(ssh_server: SshServer) -> None:
    link = Link(ssh_server.as_cloud(), "box")
    assert link.run("cat | tr a-z A-Z; echo $((1+1))", input=b"hello ").stdout == b"HELLO 2\n"


def test_input_reaches_a_command_that_outlasts_a_question_to_the_cloud(ssh_server: SshServer, home: Path) -> None:
    asked = home / "asked"

    class AskingLink(Link):
        def _runs(self) -> bool:
            asked.touch()
            return super()._runs()

    command = f"until [ -e {asked} ]; do sleep 0.05; done; cat"
    assert AskingLink(ssh_server.as_cloud(), "box").run(command, input=b"hello").stdout == b"hello"


def test_input_that_takes_longer_than_a_question_to_the_cloud_arrives_completely(ssh_server: SshServer) -> None:
    answer = Link(ssh_server.as_cloud(), "box").run("sleep 1.5; wc -c", input=b"x" * 8_000_000)
    assert answer.stdout.strip() == b"8000000"


def test_a_command_ends_with_its_machine_although_the_connection_seems_to_live(ssh_server: SshServer) -> None:
    class StoppedLink(Link):
        def _runs(self) -> bool:
            return False

    began = time.monotonic()
    with pytest.raises(CloudUnreachable, match="the connection to box was lost"):
        StoppedLink(ssh_server.as_cloud(), "box").run("echo begun; sleep 100")
    assert time.monotonic() - began < 60


def test_calls_share_one_connection_also_those_of_another_process(ssh_server: SshServer) -> None:
    link = Link(ssh_server.as_cloud(), "box")
    one = link.run("echo $PPID; echo $SSH_CONNECTION").stdout.split(b"\n")[1]
    two = subprocess.run([*link.argv(), "echo $SSH_CONNECTION"], capture_output=True, check=True).stdout.strip()
    three = Link(ssh_server.as_cloud(), "box").run("echo $SSH_CONNECTION").stdout.strip()
    assert one == two == three


def test_a_failed_command_is_reported_with_machine_command_and_output(ssh_server: SshServer) -> None:
    link = Link(ssh_server.as_cloud(), "box")
    with pytest.raises(CloudError, match=r"`sh -c .*` on box exited with 3: no such luck"):
        link.run(["sh", "-c", "echo no such luck >&2; exit 3"])
    assert link.run("exit 3", check=False).returncode == 3


def test_255_of_the_command_itself_is_not_taken_for_a_lost_connection(ssh_server: SshServer) -> None:
    link = Link(ssh_server.as_cloud(), "box")
    assert link.run("exit 255", check=False).returncode == 255


def test_a_lost_connection_is_reported_and_the_next_call_opens_another(ssh_server: SshServer, home: Path) -> None:
    link = Link(ssh_server.as_cloud(), "box")

    def cut() -> None:
        eventually((home / "began").exists)
        ssh_server.cut_connections()

    threading.Thread(target=cut).start()
    with pytest.raises(CloudUnreachable, match=r"connection to box was lost during `touch .*began; sleep 20`"):
        link.run(f"touch {home}/began; sleep 20", check=False)
    assert link.run("echo back").stdout == b"back\n"


def test_a_machine_that_came_back_elsewhere_with_another_key_is_found(ssh_server: SshServer) -> None:
    link = Link(ssh_server.as_cloud(), "box")
    first = link.run("echo $SSH_CONNECTION").stdout
    ssh_server.cut_connections()
    ssh_server.power_off()
    ssh_server.new_host_key()
    ssh_server.boot()
    link.refresh()
    assert link.run("echo $SSH_CONNECTION").stdout != first
    assert sshfiles.machines_written() == ["box"]
    assert Path(sshfiles.known_hosts_path()).read_text() == f"outlast-box {ssh_server.reported_key}\n"


def test_a_host_key_that_the_cloud_does_not_report_is_never_accepted(ssh_server: SshServer) -> None:
    reported = ssh_server.reported_key
    ssh_server.power_off()
    ssh_server.new_host_key()
    ssh_server.reported_key = reported
    ssh_server.boot()
    with pytest.raises(Denied, match="another machine may have its address"):
        Link(ssh_server.as_cloud(), "box", patience_s=0.5).run("true")


def test_a_server_that_never_answers_is_reported_with_the_next_step(ssh_server: SshServer) -> None:
    ssh_server.power_off()
    ssh_server.running = True
    with pytest.raises(CloudUnreachable, match=r"ssh to box .* failed for 0.5 s: .*refused") as raised:
        Link(ssh_server.as_cloud(), "box", patience_s=0.5).run("true")
    assert "serial box" in raised.value.hint
    ssh_server.running = False


def test_a_stopped_machine_is_reported_with_the_clouds_message(ssh_server: SshServer) -> None:
    ssh_server.power_off()
    with pytest.raises(BadRequest, match="box is not running"):
        Link(ssh_server.as_cloud(), "box").run("true")


def test_a_machine_that_was_deleted_leaves_no_block_and_no_pin(ssh_server: SshServer) -> None:
    Link(ssh_server.as_cloud(), "box").run("true")
    ssh_server.there = False
    with pytest.raises(NotFound):
        Link(ssh_server.as_cloud(), "box").run("true")
    assert sshfiles.machines_written() == []
    assert Path(sshfiles.known_hosts_path()).read_text() == ""


def test_a_command_that_takes_too_long_times_out(ssh_server: SshServer) -> None:
    with pytest.raises(CloudUnreachable, match=r"`sleep 20` on box took longer than 0.2 s"):
        Link(ssh_server.as_cloud(), "box").run("sleep 20", timeout_s=0.2)


def test_rsync_copies_through_the_same_connection(ssh_server: SshServer, tmp_path: Path) -> None:
    if shutil.which("rsync") is None:
        pytest.skip("rsync is not installed")
    link = Link(ssh_server.as_cloud(), "box")
    (tmp_path / "a b.txt").write_text("content")
    there = tmp_path / "there"
    argv = ["rsync", "-e", link.rsync_shell(), str(tmp_path / "a b.txt"), f"{link.host}:{shlex.quote(str(there))}"]
    subprocess.run(argv, check=True)
    assert there.read_text() == "content"


def test_spaces_and_percent_signs_in_the_folder_work(
    ssh_server: SshServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLAST_SSH_DIR", str(tmp_path / "my keys 100%"))
    link = Link(ssh_server.as_cloud(), "box")
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


def test_the_users_own_config_gets_one_line_once_and_keeps_the_rest(ssh_server: SshServer, home: Path) -> None:
    own = home / ".ssh" / "config"
    own.parent.mkdir(mode=0o700)
    own.write_text("Host other\n  User me\n")
    own.chmod(0o640)
    assert sshfiles.include_in_users_config()
    assert not sshfiles.include_in_users_config()
    assert own.read_text() == f'Include "{home}/.outlast/ssh/config"\n\nHost other\n  User me\n'
    assert stat.S_IMODE(own.stat().st_mode) == 0o640
    Link(ssh_server.as_cloud(), "box").run("true")
    # As an editor would ask; the plain program reads the home of the account, hence the file by name.
    config = subprocess.run(["ssh", "-F", str(own), "-G", "outlast-box"], capture_output=True, text=True, check=True)
    assert f"port {ssh_server.port}" in config.stdout
    assert "stricthostkeychecking true" in config.stdout


def test_sockets_stay_within_the_limit_of_the_system(
    home: Path, monkeypatch: pytest.MonkeyPatch, ssh_server: SshServer
) -> None:
    monkeypatch.setenv("OUTLAST_SSH_DIR", str(home / ("deep" * 20)))
    path = sshfiles.control_path("local", "box", ssh_server.access("box"))
    assert len(path) <= 86
    link = Link(ssh_server.as_cloud(), "box")
    assert link.run("echo here").stdout == b"here\n"
    link.close()


@pytest.mark.parametrize("name", ["two words", "-oProxyCommand=id", "a/b", "", "x\ny"])
def test_an_invalid_name_never_reaches_ssh(home: Path, ssh_server: SshServer, name: str) -> None:
    with pytest.raises(UsageError, match="invalid machine name"):
        Link(ssh_server.as_cloud(), name)


def test_without_an_ssh_client_the_error_has_an_install_hint(
    ssh_server: SshServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OutlastError, match="`ssh` is not installed") as raised:
        Link(ssh_server.as_cloud(), "box").run("true")
    assert "openssh-client" in raised.value.hint
