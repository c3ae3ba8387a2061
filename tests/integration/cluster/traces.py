"""The traces of a cloud's machines on this computer: processes, namespaces, sockets, cgroups, firewall rules.

Recorded while the machines live, and checked after they are deleted.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from outlast.clouds.local import network

_KINDS = ("net", "pid", "mnt", "ipc", "uts", "cgroup")
_LISTENS = "0A"


class Traces:
    """Of the cloud in that folder. Everybody else's are left out: others work on this computer, too."""

    def __init__(self, cloud: Path) -> None:
        self.cloud = cloud
        self.pids: dict[int, str] = {}
        self.spaces: dict[str, str] = {}
        self.sockets: dict[str, str] = {}
        self.ids: set[str] = set()

    def remember(self) -> None:
        """What there is now: shims by their argv, and everything below them."""
        mark = str(self.cloud).encode()
        shims = [pid for pid in _pids() if mark in _cmdline(pid)]
        below = _children()
        todo, own = list(shims), {_space(os.getpid(), kind) for kind in _KINDS}
        while todo:
            pid = todo.pop()
            self.pids[pid] = _started(pid)
            todo += below.get(pid, [])
            for kind in _KINDS:
                if (space := _space(pid, kind)) not in own and space:
                    self.spaces[space] = f"{kind} of {pid}"
            inodes = _inodes(pid)
            self.sockets |= {inode: port for inode, port in _listening(pid).items() if inode in inodes}
        self.ids |= {path.name for path in _groups() if _holds(path, self.pids)}

    def left(self, but: bytes = b"\0\0") -> list[str]:
        """Return the traces that remain, except processes with `but` in their command."""
        alive = [pid for pid, began in self.pids.items() if _started(pid) == began]
        found = [f"process {pid}" for pid in alive if _cmdline(pid) and but not in _cmdline(pid)]
        listening: dict[str, str] = {}
        nets: set[str] = set()
        for pid in _pids():
            for kind in _KINDS:
                if (space := _space(pid, kind)) in self.spaces and _cmdline(pid) and not self._is_elsewhere(pid):
                    found.append(f"process {pid} in {self.spaces[space]}")
            if (net := _space(pid, "net")) not in nets:
                nets.add(net)
                listening |= _listening(pid)
        found += [f"a socket that listens on {port}" for inode, port in self.sockets.items() if inode in listening]
        mounted = Path("/proc/self/mountinfo").read_text()
        found += [f"a mount of {where}" for space, where in self.spaces.items() if space in mounted]
        found += [f"a mount below {self.cloud}"] * (f" {self.cloud}/" in mounted)
        found += [str(path) for path in _groups() if path.name in self.ids]
        if os.geteuid() == 0 and os.path.exists("/usr/sbin/nft"):
            tables = subprocess.run(["/usr/sbin/nft", "list", "tables"], capture_output=True, text=True, check=False)
            table = network._table(str(self.cloud))
            found += [table] * (table in tables.stdout)
        return found

    def _is_elsewhere(self, pid: int) -> bool:
        """Is it on a machine of another cloud? The kernel gives the number of a namespace that is gone to a new one."""
        while pid > 1:
            argv = _cmdline(pid)
            if b"outlast.clouds.local.shim" in argv:
                return str(self.cloud).encode() not in argv
            pid = int((_stat(pid) or ["", "0"])[1])
        return False


def _groups() -> list[Path]:
    """Others come and go while one looks, which a walk does not mind."""
    found = [Path(at, name) for at, below, _ in os.walk("/sys/fs/cgroup") for name in below]
    return [path for path in found if path.name.startswith("outlast-")]


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _cmdline(pid: int) -> bytes:
    """Return the command of a process; empty if it is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _started(pid: int) -> str:
    stat = _stat(pid)
    return stat[19] if stat else ""


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for pid in _pids():
        if stat := _stat(pid):
            found.setdefault(int(stat[1]), []).append(pid)
    return found


def _space(pid: int, kind: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return ""


def _inodes(pid: int) -> set[str]:
    found = set()
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            link = os.readlink(f"/proc/{pid}/fd/{name}")
            if link.startswith("socket:["):
                found.add(link[8:-1])
    except OSError:
        pass
    return found


def _listening(pid: int) -> dict[str, str]:
    """Inode → port, of the network that the process is in."""
    found = {}
    for name in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
        except OSError:
            continue
        for argv in map(str.split, lines):
            if argv[3] == _LISTENS:
                found[argv[9]] = str(int(argv[1].rpartition(":")[2], 16))
    return found


def _holds(cgroup: Path, pids: dict[int, str]) -> bool:
    try:
        return any(int(line) in pids for line in (cgroup / "cgroup.procs").read_text().split())
    except OSError:
        return False
