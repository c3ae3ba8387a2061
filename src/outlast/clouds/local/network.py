"""The network of modes `root` and `userns`: a switch, an address for each machine, and 169.254.169.254.

No daemon runs. All shims share a network namespace that holds the switch: the first one creates it, the others join
through a living one, and it disappears with the last. 169.254.169.254 is never set on an interface of this computer: if
it is itself a cloud machine, that would hide its own metadata server.
"""

from __future__ import annotations

import _thread
import os
import socket
import zlib
from contextlib import suppress
from typing import Any, NamedTuple

from outlast.clouds.local import linux
from outlast.clouds.local.files import wait_lock
from outlast.clouds.local.folder import Folder

METADATA = "169.254.169.254"
_SWITCH = "outlast0"
# A fixed address: otherwise the switch uses that of a port, which changes as machines come and go.
_SWITCH_MAC = "02:6f:6c:00:00:01"
_IP_PATHS = ("/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip", "/bin/ip")
_NFT_PATHS = ("/usr/sbin/nft", "/sbin/nft")


class Uplink:
    """One machine's connection to the switch. Used by its shim, in the switch's namespace, and by the machine."""

    def __init__(self, *, number: int, block: int, routes_out: bool, host: int) -> None:
        self._port = f"ol{number}"
        # Derived from the address: peers cache the MAC of the previous machine at this address for half a minute.
        self._mac = f"02:6f:6c:01:{number // 256:02x}:{number % 256:02x}"
        self.address = _address(block, number)
        # With a link into this computer's network, the computer is the gateway to other networks.
        self._gateway = _address(block, _HOST_NUMBER if routes_out else _SWITCH_NUMBER)
        self.routes_out = routes_out
        # The network namespace in which the shim started.
        self.host = host

    def attach(self, network: int) -> None:
        """Create the link, with its other end in the machine's network."""
        _remove_interface(self._port)
        ip_batch(
            f"link add {self._port} type veth peer name eth0 address {self._mac} "
            f"netns /proc/{os.getpid()}/fd/{network}\n"
            f"link set {self._port} master {_SWITCH}\n"
            f"link set {self._port} up\n"
        )

    def configure(self) -> None:
        """Set addresses and the default route. Called inside the machine."""
        ip_batch(
            "link set lo up\n"
            f"addr add {self.address}/16 dev eth0\nlink set eth0 up\n"
            "addr add 169.254.169.253/30 dev meta0\nlink set meta0 up\n"
            f"route add default via {self._gateway}\n"
        )

    def cut(self) -> None:
        """Disconnect the machine in both directions, as if it had disappeared."""
        with suppress(OSError):
            ip_batch(f"link set {self._port} down\n")


class MachineNetwork(NamedTuple):
    """A new network of a machine, the socket of its metadata server, and the sockets to forward."""

    namespace: int
    listener: socket.socket
    forwards: list[socket.socket]


def create_machine_network(ports: list[int]) -> MachineNetwork:
    """Create a machine's network, with a socket at 169.254.169.254 that only this machine reaches.

    It also listens on these ports of the machine's loopback. The work is done in a thread, which has its own
    namespaces: another shim may join those of this process at any time.
    """
    made: list[MachineNetwork | OSError] = []
    done = _thread.allocate_lock()
    done.acquire()

    def make() -> None:
        try:
            made.append(_create_machine_network(ports))
        except OSError as problem:
            made.append(problem)
        finally:
            done.release()

    _thread.start_new_thread(make, ())
    done.acquire()
    if isinstance(made[0], OSError):
        raise made[0]
    return made[0]


def _create_machine_network(ports: list[int]) -> MachineNetwork:
    linux.unshare(linux.CLONE_NEWNET, "network namespace")
    machine = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    forwards = []
    if ports:
        ip_batch("link set lo up\n")
        forwards = [socket.create_server(("127.0.0.1", port)) for port in ports]
    # The server gets its own namespace: in the machine's, it would take port 80 from the machine's programs.
    linux.unshare(linux.CLONE_NEWNET, "network namespace of the metadata server")
    ip_batch(
        f"link add meta0 type veth peer name meta0 netns /proc/{os.getpid()}/fd/{machine}\n"
        f"addr add {METADATA}/30 dev meta0\n"
        "link set meta0 up\nlink set lo up\n"
    )
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((METADATA, 80))
    listener.listen(socket.SOMAXCONN)
    return MachineNetwork(machine, listener, forwards)


# Within a block of 65,536 addresses: the switch, the first and last machine, this computer.
_SWITCH_NUMBER, _FIRST, _LAST, _HOST_NUMBER = 1, 10, 65_000, 65_534


def _address(block: int, number: int) -> str:
    return f"10.{block}.{number // 256}.{number % 256}"


def join(folder: Folder, *, rootless: bool) -> Uplink:
    """Enter the cloud's network, creating it if necessary, and allocate an address. This process stays in it."""
    lock = wait_lock(f"{folder.root}/network.lock")
    try:
        others = _others_on_network(folder)
        host = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        block = 0
        for _, state in others:
            if _join_namespaces_of(int(state.get("shim_pid") or 0), rootless=rootless):
                block = int(state["net_block"])
                routes_out = bool(state.get("net_out"))
                break
        else:
            block, routes_out = _create_switch(folder, host, rootless=rootless)
        number = _own_number(folder)
        folder.set_state(shim_pid=os.getpid(), net_block=block, net_number=number, net_out=routes_out, net_on=True)
    finally:
        os.close(lock)
    return Uplink(number=number, block=block, routes_out=routes_out, host=host)


def leave(folder: Folder, uplink: Uplink) -> None:
    """Remove the address translation from this computer if this was the last machine."""
    lock = wait_lock(f"{folder.root}/network.lock")
    try:
        # Machines that end together hold their locks for a moment longer: the last one here must not count the others.
        with suppress(OSError):  # a full disk
            folder.set_state(net_on=False)
        nft = _find(_NFT_PATHS)
        if uplink.routes_out and nft and not _others_on_network(folder):
            linux.setns(uplink.host, linux.CLONE_NEWNET, "this computer's network")
            with suppress(OSError):
                _run([nft, f"delete table ip {_table(folder.root)}"])
    finally:
        os.close(lock)


def remove_nat(folder: Folder) -> None:
    """Do the same as `leave` for a killed shim, from this computer's network."""
    if os.geteuid() != 0 or not (nft := _find(_NFT_PATHS)):
        return
    lock = wait_lock(f"{folder.root}/network.lock")
    try:
        with suppress(OSError):
            folder.set_state(net_on=False)
        if not _others_on_network(folder):
            with suppress(OSError):
                _run([nft, f"delete table ip {_table(folder.root)}"])
    finally:
        os.close(lock)


def _others_on_network(folder: Folder) -> list[tuple[str, dict[str, Any]]]:
    """Return name and state of the other machines of this cloud that are on the network."""
    found = []
    for name in os.listdir(f"{folder.root}/machines"):
        other = Folder(f"{folder.root}/machines/{name}")
        if name == folder.name or name.startswith("."):
            continue
        state = other.state() or {}
        if state.get("net_on") and other.is_held():
            found.append((name, state))
    return found


def _own_number(folder: Folder) -> int:
    """Return the number of the machine's address, which it keeps until its deletion, as on the real cloud."""
    taken = set()
    for name in os.listdir(f"{folder.root}/machines"):
        if name != folder.name and not name.startswith("."):
            taken.add(int((Folder(f"{folder.root}/machines/{name}").state() or {}).get("net_number") or 0))
    own = int((folder.state() or {}).get("net_number") or 0)
    return own if own and own not in taken else next(n for n in range(_FIRST, _LAST) if n not in taken)


def _join_namespaces_of(shim_pid: int, *, rootless: bool) -> bool:
    """Enter the namespaces of another shim; return False if it is gone. Open descriptors keep them alive."""
    try:
        opened = [(linux.CLONE_NEWNET, os.open(f"/proc/{shim_pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC))]
        if rootless:
            user = os.open(f"/proc/{shim_pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
            opened.insert(0, (linux.CLONE_NEWUSER, user))
        # A shim that has just started, or another process with its pid, is still in this computer's network.
        if os.stat(f"/proc/{shim_pid}/ns/net").st_ino == os.stat("/proc/self/ns/net").st_ino:
            return False
        for kind, descriptor in opened:
            linux.setns(descriptor, kind, "the cloud's network")
            os.close(descriptor)
    except OSError:
        return False
    return True


def _remove_interface(name: str) -> None:
    """Remove an interface of a dead network: the kernel removes it late, and its name is needed."""
    if any(known == name for _, known in socket.if_nameindex()):
        with suppress(OSError):  # the kernel has removed it meanwhile
            ip_batch(f"link del {name}\n")


def _create_switch(folder: Folder, host: int, *, rootless: bool) -> tuple[int, bool]:
    """Create the switch in a new namespace, with a link into this computer's network if we are root."""
    leg = f"ol{_digest(folder.root):08x}"
    if not rootless:
        _remove_interface(leg)
    block = _free_block(folder.root, rootless=rootless)
    if rootless:
        linux.new_user_namespace(linux.CLONE_NEWNET, "user and network namespaces", seen_as=0)
    else:
        linux.unshare(linux.CLONE_NEWNET, "network namespace")
    ip_batch(
        f"link set lo up\nlink add {_SWITCH} type bridge\nlink set {_SWITCH} address {_SWITCH_MAC}\n"
        f"addr add {_address(block, _SWITCH_NUMBER)}/16 dev {_SWITCH}\nlink set {_SWITCH} up\n"
    )
    if rootless:
        return block, False
    os.set_inheritable(host, True)
    ip_batch(
        f"link add host0 type veth peer name {leg} netns /proc/self/fd/{host}\n"
        f"link set host0 master {_SWITCH}\nlink set host0 up\n"
    )
    home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    linux.setns(host, linux.CLONE_NEWNET, "this computer's network")
    try:
        ip_batch(f"addr add {_address(block, _HOST_NUMBER)}/16 dev {leg}\nlink set {leg} up\n")
        _enable_nat(folder.root, block)
    finally:
        linux.setns(home, linux.CLONE_NEWNET, "the cloud's network")
        os.close(home)
    return block, True


def _enable_nat(root: str, block: int) -> None:
    """Let machines reach the networks of this computer. Without nft, or the right to use it, they reach it only."""
    nft = _find(_NFT_PATHS)
    if not nft:
        return
    table = _table(root)
    rules = (
        f"add table ip {table}; delete table ip {table}; add table ip {table}; "
        f"add chain ip {table} out {{ type nat hook postrouting priority 100; }}; "
        f"add rule ip {table} out ip saddr 10.{block}.0.0/16 ip daddr != 10.{block}.0.0/16 masquerade"
    )
    with suppress(OSError):
        with open("/proc/sys/net/ipv4/ip_forward", "w", encoding="ascii") as file:
            file.write("1")
        _run([nft, rules])


def _table(root: str) -> str:
    return f"outlast_{_digest(root):08x}"


def _digest(root: str) -> int:
    # Interface names are short, and importing `hashlib` takes a third of a boot.
    return zlib.crc32(root.encode())


def _free_block(root: str, *, rootless: bool) -> int:
    """Return an x for which this computer has no route to 10.x.0.0/16; if possible always the same for this cloud."""
    first = _digest(root) % 100
    used: set[int] = set()
    if not rootless:
        with open("/proc/net/route", encoding="ascii") as file:
            for line in file.read().splitlines()[1:]:
                network = bytes.fromhex(line.split()[1])[::-1]
                if network[0] == 10:
                    used.add(network[1])
        with suppress(OSError), open("/etc/resolv.conf", encoding="utf-8") as names:
            used |= {int(w.split(".")[1]) for w in names.read().split() if w.startswith("10.") and w.count(".") == 3}
    return next(100 + (first + step) % 100 for step in range(100) if 100 + (first + step) % 100 not in used)


def ip_batch(commands: str) -> None:
    """Run commands of `ip` in one batch. Raises OSError with its output."""
    program = _find(_IP_PATHS)
    if not program:
        raise OSError("the command `ip` is missing: apt install iproute2")
    _run([program, "-batch", "-"], commands)


def _find(paths: tuple[str, ...]) -> str:
    return next((path for path in paths if os.path.exists(path)), "")


def _run(argv: list[str], text: str = "") -> None:
    """Run a program with this input. Not by `subprocess`, whose import takes as long as the whole network."""
    reader, writer = os.pipe()
    output_reader, output_writer = os.pipe()
    redirections = [
        (os.POSIX_SPAWN_DUP2, reader, 0),
        (os.POSIX_SPAWN_DUP2, output_writer, 1),
        (os.POSIX_SPAWN_DUP2, output_writer, 2),
    ]
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C"}
    try:
        pid = os.posix_spawn(argv[0], argv, environment, file_actions=redirections)
        os.close(reader)
        reader = -1
        os.close(output_writer)
        output_writer = -1
        os.write(writer, text.encode())
        os.close(writer)
        writer = -1
        output = os.read(output_reader, 65536).decode("utf-8", "replace").strip()
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0:
            raise OSError(f"{os.path.basename(argv[0])}: {output}")
    finally:
        for descriptor in (reader, writer, output_reader, output_writer):
            if descriptor >= 0:
                os.close(descriptor)
