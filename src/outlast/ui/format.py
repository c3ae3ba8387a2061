"""Formatting for the dashboard: the texts of the commands, and a few more."""

from __future__ import annotations

import time

from outlast.formatting.event_text import sentence as sentence
from outlast.formatting.quantities import money as exact_money
from outlast.formatting.quantities import size as size
from outlast.spec.quantity import describe_s as describe_s

# State of a run → colour class. The state is always shown as text, too.
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
    "released": "done",
}


def money(usd: float, *, estimated: bool = False) -> str:
    """Format with cents, and with `~` an estimate; `< $0.01` for less than a cent, where `exact_money` belongs into
    the title."""
    return "< $0.01" if 0 < usd < 0.01 else ("~" if estimated else "") + exact_money(usd)


def printable(text: str) -> str:
    """Escape invisible characters in a file name: they could reorder text, so that a program looks like an image."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def clock(at: float) -> str:
    """Format a time as `12:03:04`, in the server's time zone."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def moment(at: float) -> str:
    """Format a time as `16 Nov 12:03`; empty for 0."""
    return time.strftime("%d %b %H:%M", time.localtime(at)).lstrip("0") if at else ""
