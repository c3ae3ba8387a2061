"""Limits for open connections per source, so that a flood leaves room for the owner's browser.

A connection without a request is closed after a timeout. At the limit, new connections are closed, never old ones.
"""

from __future__ import annotations

import asyncio
import resource
from typing import TYPE_CHECKING, Any

from outlast.ui.admission import Attempts, Refusals, RequestSource, source_of

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol as HTTPProtocol
else:
    # The same, or a faster implementation with the same attributes.
    from uvicorn.protocols.http.auto import AutoHTTPProtocol as HTTPProtocol

# A browser opens six connections and a websocket per tab; a proxy or a shared address has many browsers.
_OF_STRANGER_MAX, _OF_STRANGERS_MAX, _OF_KNOWN_MAX = 128, 256, 256
# Strangers may take this fraction of the files that the process may open.
_SHARE = 4
_FIRST_REQUEST_S = 20.0


class Connections:
    def __init__(self, attempts: Attempts, refusals: Refusals) -> None:
        self._attempts = attempts
        self._refusals = refusals
        self._open: dict[RequestSource, set[asyncio.Transport]] = {}
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._max = files // _SHARE if files != resource.RLIM_INFINITY else _OF_STRANGERS_MAX

    def admit(self, transport: asyncio.Transport) -> bool:
        """Count a new connection. Return False, without counting, if there are too many."""
        # Without a peer the connection was already reset.
        theirs, ours = (transport.get_extra_info(end) or () for end in ("peername", "sockname"))
        source = source_of(theirs[:2] or None, ours[:2] or None)
        known = self._attempts.knows(source)
        self._drop_closed()
        strangers = sum(len(held) for other, held in self._open.items() if not self._attempts.knows(other))
        full = not known and strangers >= min(_OF_STRANGERS_MAX, self._max)
        allowed = min(_OF_KNOWN_MAX if known else _OF_STRANGER_MAX, self._max)
        if full or len(self._open.get(source, ())) >= allowed:
            self._refusals.report(source, "too many open connections")
            return False
        self._open.setdefault(source, set()).add(transport)
        return True

    def _drop_closed(self) -> None:
        # A websocket replaces the protocol of its transport, so only the transport reports the end.
        for source, held in list(self._open.items()):
            held.difference_update([transport for transport in held if transport.is_closing()])
            if not held:
                del self._open[source]


def limited(connections: Connections) -> type[asyncio.Protocol]:
    """Return the server's protocol class, with limits."""

    class Limited(HTTPProtocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if connections.admit(transport):
                self.loop.call_later(_FIRST_REQUEST_S, self._end_if_silent)
            else:
                transport.abort()

        def _end_if_silent(self) -> None:
            # A websocket may have replaced this protocol.
            if getattr(self, "cycle", None) is None and self.transport.get_protocol() is self:
                self.transport.abort()

    return Limited
