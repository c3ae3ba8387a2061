"""Limits for clients that have not logged in: password attempts, and lines in the log.

A source is an IPv4 address, the /64 network of an IPv6 address (one customer has all of it), or, on this computer, a
user. Each has its own limit, so that a stranger uses up no attempts but their own. A second limit holds for all
strangers together. The user who runs the dashboard and sources that have logged in before are exempt from it. Nothing
here blocks, and its memory is bounded.
"""

from __future__ import annotations

import ipaddress
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from outlast.clouds.local.peer_credentials import CLOSED, user_of

WINDOW_S = 60.0
# Password attempts in a window: of one source, and of all strangers together.
ATTEMPTS_MAX, STRANGERS_ATTEMPTS_MAX = 10, 100
# Sources that have logged in; the least recently used one is dropped first.
_KNOWN_MAX = 64
# Log lines in a window.
_LINES_MAX = 10

Address = tuple[str, int]
Clock = Callable[[], float]


class RequestSource(NamedTuple):
    """The origin of a request. `own`: from the user who runs the dashboard, on this computer."""

    name: str
    own: bool = False


def source_of(client: Address | None, server: Address | None, forwarded: str = "") -> RequestSource:
    """Return the source of a connection. `forwarded` is a proxy's header, which counts only from this computer.

    Only the last address in that header comes from the proxy. A local user may forge it without gain: the result is
    a stranger.
    """
    theirs, ours = _address(client), _address(server)
    if theirs is None or client is None:
        return RequestSource("an unknown address")
    if not theirs.is_loopback:
        return RequestSource(_named(theirs))
    if forwarded:
        last = _address((forwarded.rpartition(",")[2].strip(), 0))
        return RequestSource(f"{_named(last)} behind a proxy" if last else "an unknown address behind a proxy")
    user = user_of((str(theirs), client[1]), (str(ours), server[1])) if ours and server else None
    if user is None:
        return RequestSource("this computer", own=sys.platform != "linux")
    if user == CLOSED:
        return RequestSource("a closed connection of this computer")
    return RequestSource(f"user {user} of this computer", own=user == os.geteuid())


def _address(given: Address | None) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(given[0]) if given else None
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, ipaddress.IPv6Address) else found


def _named(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(ipaddress.IPv6Network((int(address), 64), strict=False))


class Attempts:
    """The password attempts of the last minute. An attempt counts from its start, before anything is awaited."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._of: dict[str, deque[float]] = {}
        self._of_strangers: deque[float] = deque()
        self._known: dict[str, None] = {}

    def begin(self, source: RequestSource) -> bool:
        """Count an attempt. Return False, without counting, if there were too many."""
        self._drop_old()
        stranger = not source.own and source.name not in self._known
        if len(self._of.get(source.name, ())) >= ATTEMPTS_MAX:
            return False
        if stranger and len(self._of_strangers) >= STRANGERS_ATTEMPTS_MAX:
            return False
        # Only admitted attempts are stored: this also bounds the number of sources.
        self._of.setdefault(source.name, deque()).append(self._clock())
        if stranger:
            self._of_strangers.append(self._clock())
        return True

    def succeed(self, source: RequestSource) -> None:
        """Remember a source that has logged in, and do not count its last attempt."""
        if times := self._of.get(source.name):
            times.pop()
            if not self.knows(source) and self._of_strangers:
                self._of_strangers.pop()
        self.remember(source)

    def remember(self, source: RequestSource) -> None:
        """Remember a source that has presented the password or the link."""
        self._known.pop(source.name, None)
        self._known[source.name] = None
        if len(self._known) > _KNOWN_MAX:
            del self._known[next(iter(self._known))]

    def knows(self, source: RequestSource) -> bool:
        """Return whether the source has logged in before."""
        return source.own or source.name in self._known

    def _drop_old(self) -> None:
        begin = self._clock() - WINDOW_S
        for times in (*self._of.values(), self._of_strangers):
            while times and times[0] <= begin:
                times.popleft()
        for name in [name for name, times in self._of.items() if not times]:
            del self._of[name]


class Refusals:
    """Log refused requests: each source and reason once a minute, with a limit per minute and a count of the rest."""

    def __init__(self, log: Callable[[str], None], clock: Clock = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._since = clock()
        self._reported: set[tuple[str, str]] = set()
        self._left_out = 0

    def report(self, source: RequestSource, why: str) -> None:
        if self._clock() - self._since >= WINDOW_S:
            if self._left_out:
                self._log(f"refused {self._left_out} more requests")
            self._since, self._left_out = self._clock(), 0
            self._reported.clear()
        if (source.name, why) in self._reported or len(self._reported) >= _LINES_MAX:
            self._left_out += 1
            return
        self._reported.add((source.name, why))
        self._log(f"refused a request from {source.name}: {why}")
