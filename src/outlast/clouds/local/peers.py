"""Who is at the other end of a loopback connection. Loopback is open to every user of a computer, and to every web page
in this user's browser; what listens here is for neither.

On a cloud the network keeps strangers away from a metadata server, and tokens keep them away from an API. Here the
servers must ask: secrets are behind them, and whoever may launch a machine runs programs as this user.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Mapping

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_HEADER = struct.Struct("=IHHII")
# family, protocol, extensions, padding, states; ports and addresses; interface, cookie
_QUESTION = struct.Struct("=BBBxI")
_ENDS = struct.Struct("!HH16s16s")
_NO_COOKIE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
# In the answer: 4 bytes, the ends, interface and cookie, then expiry, two queues, uid, inode.
_UID_OFFSET = _HEADER.size + 4 + _ENDS.size + len(_NO_COOKIE) + 12


def is_stranger(client: socket.socket) -> bool:
    """Whether another user made this connection. False where nobody can tell, as on macOS."""
    if sys.platform != "linux":
        return False
    try:
        user = _user_of(client.getpeername(), client.getsockname())
    except OSError:
        return False
    return user is not None and user != os.geteuid()


# By these our servers are found; all else that a browser may have been told to be this computer is a page's name.
_OUR_NAMES = frozenset({"", "localhost", "metadata", "metadata.google.internal"})


def is_page(headers: Mapping[str, str]) -> bool:
    """Whether a web page asks (names in lower case). Browsers add headers that programs do not send; and a page whose
    own name was made to lead here, so that it may read the answer, still says that name."""
    if "origin" in headers or headers.get("sec-fetch-site", "none") != "none":
        return True
    host = headers.get("host", "").strip().lower()
    name = host if host.startswith("[") else host.partition(":")[0]
    return name not in _OUR_NAMES and not name.startswith("[") and bool(name.strip("0123456789."))


def _user_of(theirs: tuple[str, int], ours: tuple[str, int]) -> int | None:
    """Ask the kernel for the owner of their end: one question, where reading /proc/net/tcp takes milliseconds."""
    ends = _ENDS.pack(theirs[1], ours[1], socket.inet_aton(theirs[0]), socket.inet_aton(ours[0]))
    question = _QUESTION.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 0xFFFFFFFF) + ends + _NO_COOKIE
    header = _HEADER.pack(_HEADER.size + len(question), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(1.0)
        kernel.send(header + question)
        answer = kernel.recv(8192)
    if len(answer) < _UID_OFFSET + 4 or _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None
    return int.from_bytes(answer[_UID_OFFSET : _UID_OFFSET + 4], sys.byteorder)
