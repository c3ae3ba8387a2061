"""How the page words things: the same words as the commands, and what only a page needs."""

from __future__ import annotations

import time

from outlast.formatting.event_text import sentence as sentence
from outlast.formatting.quantities import money as money
from outlast.formatting.quantities import size as size
from outlast.spec.quantity import describe_s as describe_s

# State of a run → the tone in which it is shown. The word is always there, too.
TONES = {
    "running": "good",
    "finished": "done",
    "booting": "busy",
    "handing over": "busy",
    "leaving": "warn",
    "stopping": "warn",
    "waiting": "warn",
    "failed": "bad",
    "damaged": "bad",
    "unreadable": "warn",
    "stopped": "bad",
    "cancelled": "off",
}


def named(text: str) -> str:
    """The name of somebody's file. What cannot be seen in it is written out: it may turn round what follows, so that a
    program reads as a picture."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def clock(at: float) -> str:
    """`12:03:04`, of the viewer's own computer, which this server is."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def moment(at: float) -> str:
    """`16 Nov 12:03`."""
    return time.strftime("%d %b %H:%M", time.localtime(at)).lstrip("0") if at else ""
