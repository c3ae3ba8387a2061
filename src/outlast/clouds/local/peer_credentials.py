"""Decide whether a loopback connection belongs to the user of this process, and whether a request is from a web page.

Loopback is open to every user of a computer, and to every web page in this user's browser. On a cloud the network keeps
other users away from a metadata server, and tokens keep them away from an API. Here the servers check each connection:
secrets are behind them, and a client that launches a machine runs programs as this user.

The check fails closed. A connection whose owner the kernel does not report is refused.
"""

from __future__ import annotations

import _thread
import functools
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

Address = tuple[str, int]


class PeerSocket(NamedTuple):
    """The other end of a connection, as the kernel reports it."""

    uid: int
    inode: int


Finder = Callable[[Address, Address], PeerSocket | None]

# In place of a user: no process holds the other end any more.
CLOSED = -1


class PeerCheck:
    """Distinguishes connections of this user from those of others. May be used by several threads.

    Create it before the process enters a user namespace, in which the kernel reports all users of the computer as one.
    """

    def __init__(self) -> None:
        self._uid = os.geteuid()
        self._lock = _thread.allocate_lock()
        # macOS does not report the owner of a connection to other users' programs; see SECURITY.md.
        self._enforced = sys.platform == "linux"
        self._find = _working_finder() if self._enforced else None

    @property
    def works(self) -> bool:
        """Return whether owners can be found. If not, every connection is refused."""
        return self._find is not None or not self._enforced

    def refusal(self, client: socket.socket) -> str:
        """Return why this connection is refused; empty if it is open and this user made it."""
        if not self._enforced:
            return ""
        if client.family not in (socket.AF_INET, socket.AF_INET6):
            return "it does not use TCP"
        try:
            user = self.user(client.getpeername()[:2], client.getsockname()[:2])
            # Fails once the connection was reset. Its two addresses are unique only while it is open.
            client.getpeername()
        except OSError:
            user = CLOSED
        if user is None:
            return "this computer does not report the owners of connections"
        if user == CLOSED:
            return "the sender closed it before its owner was known"
        return "" if user == self._uid else f"it belongs to user {user}"

    def user(self, theirs: Address, ours: Address) -> int | None:
        """Return the user at the other end, or CLOSED; None if this computer does not report it."""
        if self._find is None:
            return None
        try:
            with self._lock:
                found = self._find(theirs, ours)
        except OSError:
            return CLOSED
        # The kernel reports uid 0 for sockets that no process holds any more. They have no inode.
        return found.uid if found is not None and found.inode else CLOSED


def user_of(theirs: Address, ours: Address) -> int | None:
    """Return the user at the other end of a connection within this computer, or CLOSED; None if it is not reported."""
    return _shared().user(theirs, ours)


@functools.cache
def _shared() -> PeerCheck:
    return PeerCheck()


def _working_finder() -> Finder | None:
    for make in (_Netlink, _ProcFiles):
        try:
            find = make().find
            found = _find_own(find)
        except OSError:
            continue
        if found is not None and found.uid == os.geteuid() and found.inode:
            return find
    return None


def _find_own(find: Finder) -> PeerSocket | None:
    """Look up a connection of this process, to test whether the finder works here."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        return find(client.getsockname(), listener.getsockname())


_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
# length, kind, flags, sequence number, port
_HEADER = struct.Struct("=IHHII")
# family, protocol, extensions, padding, states; ports and addresses; interface, cookie
_QUESTION = struct.Struct("=BBBxI")
_ENDS = struct.Struct("!HH16s16s")
_NO_COOKIE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
# family, state, timer, retransmits; ports, addresses; interface, cookie; expiry, two queues, uid, inode
_ANSWER = struct.Struct("=BBBB4s32s12sIIIII")


class _Netlink:
    """Finds one socket by netlink: microseconds, where reading /proc/net/tcp takes milliseconds."""

    def __init__(self) -> None:
        self._kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG)
        # The kernel queues its answer before `send` returns, so `recv` never waits.
        self._kernel.setblocking(False)
        self._sequence = 0

    def find(self, theirs: Address, ours: Address) -> PeerSocket | None:
        """Return the socket at `theirs` that is connected to `ours`. Raises OSError."""
        ends = _ENDS.pack(theirs[1], ours[1], _packed(theirs), _packed(ours))
        question = _QUESTION.pack(_family(theirs), socket.IPPROTO_TCP, 0, 0xFFFFFFFF) + ends + _NO_COOKIE
        self._sequence = self._sequence % 0xFFFFFFFF + 1
        header = _HEADER.pack(_HEADER.size + len(question), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, self._sequence, 0)
        self._kernel.send(header + question)
        while True:
            answer = self._kernel.recv(8192)
            _, kind, _, sequence, _ = _HEADER.unpack_from(answer)
            if sequence == self._sequence:
                break
        if kind != _SOCK_DIAG_BY_FAMILY or len(answer) < _HEADER.size + _ANSWER.size:
            return None
        fields = _ANSWER.unpack_from(answer, _HEADER.size)
        # The answer must be about the requested ports.
        return PeerSocket(uid=fields[-2], inode=fields[-1]) if fields[4] == ends[:4] else None


def _family(address: Address) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address[0] else socket.AF_INET


def _packed(address: Address) -> bytes:
    return socket.inet_pton(_family(address), address[0])


class _ProcFiles:
    """Finds a socket in the tables of all sockets, for kernels without netlink diagnostics."""

    def __init__(self) -> None:
        # The kernel fixes the view of the users when a file is opened.
        self._tables = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in _TABLES if os.path.exists(path)]

    def find(self, theirs: Address, ours: Address) -> PeerSocket | None:
        """Return the socket at `theirs` that is connected to `ours`. Raises OSError."""
        local, remote = _in_table(theirs), _in_table(ours)
        for table in self._tables:
            for line in _read_all(table).splitlines()[1:]:
                fields = line.split()
                # IPv6 sockets that are connected over IPv4 have the same address behind a prefix.
                if fields[1].removeprefix(_MAPPED) == local and fields[2].removeprefix(_MAPPED) == remote:
                    return PeerSocket(uid=int(fields[7]), inode=int(fields[9]))
        return None


_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
# The kernel prints addresses as 32-bit numbers in host byte order.
_MAPPED = "0" * 16 + ("FFFF0000" if sys.byteorder == "little" else "0000FFFF")


def _in_table(address: Address) -> str:
    packed = _packed(address)
    numbers = (int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4))
    return "".join(f"{number:08X}" for number in numbers) + f":{address[1]:04X}"


def _read_all(descriptor: int) -> str:
    os.lseek(descriptor, 0, os.SEEK_SET)
    pieces = []
    while piece := os.read(descriptor, 1 << 20):
        pieces.append(piece)
    return b"".join(pieces).decode("ascii", "replace")


# A kind of refusal is logged at least this often while it goes on.
_LOG_EVERY_S = 3600.0


class RefusalLog:
    """Logs refusals, without letting a flood of them fill the log. May be used by several threads.

    Logs the first of each kind, then the 10th, the 100th and so on, and besides at most one per hour.
    """

    def __init__(self, log: Callable[[str], object], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._lock = _thread.allocate_lock()
        # Kind → count, the count that is logged next, the time of the last log line.
        self._kinds: dict[str, tuple[int, int, float]] = {}

    def add(self, kind: str, text: str) -> None:
        """Count a refusal, and log `text` if it is due."""
        now = self._clock()
        with self._lock:
            count, next_at, logged_at = self._kinds.get(kind, (0, 1, now))
            count += 1
            due = count >= next_at or now - logged_at >= _LOG_EVERY_S
            if count >= next_at:
                next_at *= 10
            self._kinds[kind] = (count, next_at, now if due else logged_at)
        if due:
            self._log(text if count == 1 else f"{text} ({count:,} such refusals so far)")


# Host names of our servers. Any other name that resolves to this computer may belong to a web page (DNS rebinding).
_OUR_NAMES = frozenset({"", "localhost", "metadata", "metadata.google.internal"})


def is_page(headers: Mapping[str, str]) -> bool:
    """Return whether a web page sent the request. Header names are in lower case.

    Browsers add headers that other programs do not send. A page whose name resolves to this computer sends that name.
    """
    if "origin" in headers or headers.get("sec-fetch-site", "none") != "none":
        return True
    host = headers.get("host", "").strip().lower()
    if host.startswith("["):
        address, closing, port = host[1:].partition("]")
        return not closing or bool(address.strip("0123456789abcdef:.")) or bool(port.strip(":0123456789"))
    name = host.partition(":")[0]
    return name not in _OUR_NAMES and bool(name.strip("0123456789."))
