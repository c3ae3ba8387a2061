"""Snapshots: the folded state of a story, stored beside it, so that a reader need not fetch every event.

A snapshot is a cache. A reader uses it only if all of these hold; otherwise it reads the whole story:
- its checksum fits its body, so that a damaged object is recognised;
- the same code folded it, by a fingerprint of the modules that define events and states;
- the story contains the last event of the snapshot, with the same body.
Every event after that one is read from the story.
"""

from __future__ import annotations

import zlib

import msgspec

from outlast.errors import Damaged, Missing, WorkspaceError
from outlast.runs import events, state
from outlast.runs.state import RunState
from outlast.store.bucket import Bucket
from outlast.store.codec import decoded

# Events between two snapshots: a reader fetches about this many, in parallel. Long stories have large snapshots, which
# are written less often.
GAP, _GAP_MAX, _GAP_PART = 16, 64, 16


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state after `length` events."""

    fold: str
    length: int
    # The checksum of the body of the last of these events.
    last_crc32: int
    # Of all these events, so that a writer recognizes its own event after a lost response.
    nonces: tuple[str, ...]
    state: RunState


class _Sealed(msgspec.Struct, frozen=True, kw_only=True):
    """`snapshot.json`: the snapshot and the checksum of its bytes."""

    crc32: int
    snapshot: msgspec.Raw


def snapshot_key(run: str) -> str:
    return f"runs/{run}/snapshot.json"


def is_due(length: int, before: int, gap: int = GAP) -> bool:
    """Return whether a story of this length needs a new snapshot, if the last known one ends at `before`."""
    return length - before >= min(_GAP_MAX, max(gap, length // _GAP_PART))


def read_snapshot(bucket: Bucket, run: str) -> Snapshot | None:
    """Fetch the snapshot; None if there is none that this code can use. Raises StoreUnreachable."""
    key = snapshot_key(run)
    try:
        sealed = decoded(bucket.get(key), _Sealed, key)
        if zlib.crc32(sealed.snapshot) != sealed.crc32:
            return None
        found = decoded(bytes(sealed.snapshot), Snapshot, key)
    except (Missing, Damaged):
        return None
    whole = 0 < found.length == found.state.length == len(found.nonces)
    return found if whole and found.fold == fingerprint() else None


def write_snapshot(bucket: Bucket, run: str, folded: RunState, *, last_crc32: int, nonces: tuple[str, ...]) -> bool:
    """Store a snapshot, and report whether that worked. A failure is harmless: readers fetch more events."""
    found = Snapshot(fold=fingerprint(), length=folded.length, last_crc32=last_crc32, nonces=nonces, state=folded)
    body = msgspec.json.encode(found)
    try:
        bucket.put(snapshot_key(run), msgspec.json.encode(_Sealed(crc32=zlib.crc32(body), snapshot=msgspec.Raw(body))))
    except WorkspaceError:
        return False
    return True


_known = ""


def fingerprint() -> str:
    """Identify the fold: a state that other code has folded may lack a field, or mean something else by one."""
    global _known
    if not _known:
        crc = 0
        for module in (events, state):
            with open(str(module.__file__), "rb") as file:
                crc = zlib.crc32(file.read(), crc)
        _known = f"{crc:08x}"
    return _known
