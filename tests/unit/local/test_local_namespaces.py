"""Modes `root` and `userns`: isolation of files, processes, users and network."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from outlast.clouds.cloud import Boot, HostAccess, SshAccess
from outlast.clouds.local.cloud import LocalCloud
from outlast.clouds.local.probe import why_not
from outlast.clouds.local.ssh import find_sshd
from outlast.testing.cloud_conformance import MachineFactory, eventually

METADATA = "curl -s -H 'Metadata-Flavor: Google' http://169.254.169.254/computeMetadata/v1/instance"


@pytest.fixture(params=["root", "userns"])
def mode(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if reason := why_not(request.param, root=str(tmp_path)):
        pytest.skip(f"mode {request.param} does not work here: {reason}")
    return str(request.param)


def output_of(fleet: MachineFactory, script: str, host: HostAccess | None = None, image: str = "") -> list[str]:
    """Return the lines that a machine prints when it runs this script."""
    boot = Boot(script=f"{script}\necho the-end", image=image, host=host)
    name = fleet.name()
    fleet.cloud.launch(fleet.offer(), name, boot=boot, labels=fleet.labels)
    return fleet.wait_serial(name, "the-end").partition("the-end")[0].splitlines()[1:]


def test_a_machine_has_its_own_name_address_processes_and_metadata(fleet: MachineFactory, cloud: LocalCloud) -> None:
    script = f"hostname; hostname -i; echo $$; id -u; {METADATA}/name; echo; {METADATA}/network-interfaces/0/ip; echo"
    name, address, pid, user, reported_name, reported_address = output_of(fleet, script)[:6]
    machine = fleet.wait(name, "running")
    assert [name, address] == [reported_name, reported_address] == [machine.name, machine.address]
    assert address.startswith("10.")
    assert int(pid) < 100
    assert user == "0"


def test_the_files_of_the_host_are_not_visible(fleet: MachineFactory, tmp_path: Path) -> None:
    secret = tmp_path / "key"
    secret.write_text("hunter2")
    private = ["/etc/shadow-", *(str(path) for path in Path("/etc/ssh").glob("ssh_host_*_key"))]
    places = " ".join(shlex.quote(path) for path in [str(secret), str(Path(__file__)), *private])
    lines = output_of(
        fleet, f"cat {places} 2>/dev/null; grep -v ':[*]:' /etc/shadow; ls -A /home | grep -v '^cloudsdk'"
    )
    # If the interpreter is below a home, that part of the home is visible.
    homes = [path for path in (sys.prefix, sys.base_prefix) if path.startswith("/home/")]
    assert [line for line in lines if not any(line in path for path in homes)] == []


def test_readable_paths_can_be_read_and_writable_ones_written(fleet: MachineFactory, tmp_path: Path) -> None:
    shown, shared = tmp_path / "shown", tmp_path / "shared"
    shown.mkdir()
    shared.mkdir()
    (shown / "data").write_text("seen\n")
    (tmp_path / "one-file").write_text("alone\n")
    script = f"cat {shown}/data {tmp_path}/one-file; echo no > {shown}/data; echo written > {shared}/result"
    lines = output_of(
        fleet, script, HostAccess(writable=(str(shared),), readable=(str(shown), str(tmp_path / "one-file")))
    )
    assert lines[:2] == ["seen", "alone"]
    assert (shared / "result").read_text() == "written\n"
    assert (shown / "data").read_text() == "seen\n"


def test_a_machine_changes_software_for_itself_only(fleet: MachineFactory, cloud: LocalCloud) -> None:
    place = "/usr/local/bin/outlast-test-tool"
    first = fleet.launch(
        script=f"printf '#!/bin/sh\\necho works\\n' > {place}; chmod +x {place}; outlast-test-tool"
    ).name
    fleet.wait_serial(first, "works")
    assert not os.path.exists(place)
    assert output_of(fleet, f"test -e {place} || echo absent") == ["absent"]
    cloud.stop(first)
    cloud.snapshot(first, "with-tool", family="tools")
    assert output_of(fleet, "outlast-test-tool", image="tools") == ["works"]


def test_machines_reach_each_other(fleet: MachineFactory, cloud: LocalCloud) -> None:
    serve = "mkdir -p /srv/www; echo hello > /srv/www/x; cd /srv/www; echo serving; exec python3 -m http.server 80"
    server = fleet.launch(script=serve).name
    fleet.wait_serial(server, "serving")
    # On port 80, which the metadata server does not take from a machine.
    address = fleet.wait(server, "running").address
    assert output_of(fleet, f"until curl -s http://{address}/x; do sleep 0.05; done") == ["hello"]


def test_a_port_of_this_computer_is_found_at_the_same_address(fleet: MachineFactory, tmp_path: Path) -> None:
    (tmp_path / "page").write_text("from the computer\n" * 10_000)
    server = subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline().split("port ")[1].split()[0])
        page, nothing = f"http://127.0.0.1:{port}/page", f"http://127.0.0.1:{port + 1}"
        ask = f"curl -s {page} | sort | uniq -c; curl -s -m 3 {nothing} || echo no"
        seen, other = output_of(fleet, ask, HostAccess(ports=(port,)))
    finally:
        server.kill()
        server.wait()
    assert seen.split() == ["10000", "from", "the", "computer"]
    assert other == "no"


@pytest.mark.full
def test_a_preempted_machine_leaves_its_connections_open(fleet: MachineFactory, cloud: LocalCloud) -> None:
    """As after a power failure: a killed process would close its connections."""
    listen = "import socket; s = socket.create_server(('', 7)); print('up', flush=True); c = s.accept(); s.accept()"
    server = fleet.launch(script=f"exec python3 -c {shlex.quote(listen)}").name
    fleet.wait_serial(server, "up")
    address = fleet.wait(server, "running").address
    ask = (
        f"import socket; c = socket.create_connection(('{address}', 7)); print('in', flush=True)\n"
        "c.settimeout(3)\ntry:\n    print('heard', c.recv(1))\nexcept TimeoutError:\n    print('silence')\n"
    )
    client = fleet.launch(script=f"python3 -c {shlex.quote(ask)}; echo the-end").name
    fleet.wait_serial(client, "in\n")
    cloud.preempt(server, notice=False)
    assert "silence" in fleet.wait_serial(client, "the-end")


def test_a_shutdown_script_runs_at_the_notice_and_ends_the_machine(fleet: MachineFactory, cloud: LocalCloud) -> None:
    boot = Boot(script="echo up; sleep 1000", metadata={"shutdown-script": "echo shutdown ran"})
    cloud.launch(fleet.offer(), "m", boot=boot, labels=fleet.labels)
    fleet.wait_serial("m", "up")
    cloud.preempt("m")
    assert fleet.wait("m", "stopped").why == "preempted"
    assert "shutdown ran" in cloud.serial("m")
    cloud.start("m")
    fleet.wait("m", "running")
    fleet.wait_serial("m", "up", times=2)
    cloud.stop("m")
    assert cloud.serial("m").count("shutdown ran") == 2


def traces(cloud: LocalCloud, ids: list[int]) -> list[str]:
    """Return what this cloud has outside of its folder: interface, nft table, control groups."""
    mark = f"{zlib.crc32(cloud.root.encode()):08x}"
    found = [name for _, name in socket.if_nameindex() if name == f"ol{mark}"]
    tables = subprocess.run(["/usr/sbin/nft", "list", "tables"], capture_output=True, text=True, check=False).stdout
    found += [line for line in tables.splitlines() if line.endswith(f"outlast_{mark}")]
    return found + [str(path) for number in ids for path in Path("/sys/fs/cgroup").glob(f"**/outlast-{number}")]


@pytest.mark.parametrize("injection", ["none", "one shim", "all shims"])
def test_nothing_is_left_when_the_last_machine_is_gone(
    fleet: MachineFactory, cloud: LocalCloud, mode: str, tmp_path: Path, injection: str
) -> None:
    if mode == "root" and not os.path.exists("/usr/sbin/nft"):
        pytest.skip("nft is not installed: apt install nftables")
    names = [fleet.launch(script="echo up; sleep 1000").name for _ in range(3)]
    for name in names:
        fleet.wait_serial(name, "up")
    folders = [tmp_path / "cloud" / "machines" / name for name in names]
    ids = [json.loads((folder / "machine.json").read_text())["id"] for folder in folders]
    assert bool(traces(cloud, ids)) == (mode == "root")
    for name, folder in list(zip(names, folders, strict=True))[: {"none": 0, "one shim": 1, "all shims": 3}[injection]]:
        os.kill(json.loads((folder / "state.json").read_text())["shim_pid"], signal.SIGKILL)
        fleet.wait(name, "broken")
    for name in names:
        cloud.delete(name)
    eventually("nothing is left", lambda: traces(cloud, ids) == [])


@pytest.fixture
def key(tmp_path: Path) -> Path:
    if not find_sshd():
        pytest.skip("sshd is not installed: apt install openssh-server")
    path = tmp_path / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


def log_in(access: SshAccess, key: Path, command: str, *, user: str = "") -> subprocess.CompletedProcess[str]:
    known = key.with_name("known_hosts")
    known.write_text("".join(f"machine {line}\n" for line in access.host_keys))
    options = ["HostKeyAlias=machine", f"UserKnownHostsFile={known}", "StrictHostKeyChecking=yes", "BatchMode=yes"]
    if access.proxy_command:
        options.append(f"ProxyCommand={access.proxy_command}")
    argv = [word for option in options for word in ("-o", option)]
    target = f"{user or access.user}@{access.host}"
    return subprocess.run(
        ["ssh", "-F", "none", "-i", str(key), *argv, "-p", str(access.port), target, command],
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_admitted_key_logs_in_as_root_of_the_machine(fleet: MachineFactory, cloud: LocalCloud, key: Path) -> None:
    name = fleet.launch(script="echo up; sleep 1000").name
    fleet.wait(name, "running")
    cloud.admit(name, key.with_suffix(".pub").read_text())
    access = cloud.access(name)

    def look() -> str:
        return log_in(access, key, "hostname; id -u; echo $HOME; exit 3").stdout

    assert eventually("ssh lets us in", look).split() == [name, "0", "/root"]
    assert log_in(access, key, "exit 3").returncode == 3


def test_users_in_the_metadata_get_an_account(fleet: MachineFactory, cloud: LocalCloud, mode: str, key: Path) -> None:
    if mode != "root":
        pytest.skip("a single user's namespace has no other accounts")
    public = key.with_suffix(".pub").read_text().strip()
    boot = Boot(script="echo up; sleep 1000", metadata={"ssh-keys": f"ada:{public}\n"})
    cloud.launch(fleet.offer(), "m", boot=boot, labels=fleet.labels)
    fleet.wait("m", "running")
    answer = eventually("ada logs in", lambda: log_in(cloud.access("m"), key, "whoami; pwd", user="ada").stdout)
    assert answer.split() == ["ada", os.path.join("/home", "ada")]


def test_another_key_cannot_log_in(fleet: MachineFactory, cloud: LocalCloud, key: Path, tmp_path: Path) -> None:
    name = fleet.launch(script="echo up; sleep 1000").name
    fleet.wait(name, "running")
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    cloud.admit(name, key.with_suffix(".pub").read_text())
    access = cloud.access(name)
    eventually("sshd accepts the admitted key", lambda: log_in(access, key, "echo in").stdout)
    assert "Permission denied" in log_in(access, other, "echo in").stderr
