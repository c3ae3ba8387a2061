"""Shared objects: bodies that several runs refer to by name, and how they are deleted beside concurrent submissions.

Two writers race: a submission, which refers to an object that exists, and a collection, which deletes objects that
nothing refers to. Each announces itself before it checks the other:

    submission                                   collection
    1. store the object, unless it exists        1. create the mark `collecting/KEY/NONCE`
    2. write the reference (`spec.json` …)       2. read all references
    3. refuse if a mark exists, or the object    3. delete the object if nothing refers to it; then its own mark
       is gone

So at least one of the two sees the other. A collector that dies leaves its mark, and its delayed deletion can do no
harm: a later submission stores another copy under the next name (`NAME.1`), which no mark concerns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outlast.errors import BeingCollected, Exists, Missing
from outlast.store.bucket import Bucket
from outlast.store.parallel import ParallelMap, one_by_one

MARKS = "collecting/"


def marks_of(key: str) -> str:
    """Return the prefix of the marks of an object."""
    return f"{MARKS}{key}/"


def is_marked(bucket: Bucket, key: str) -> bool:
    """Return whether a collection may be about to delete the object."""
    return any(True for _ in bucket.list(marks_of(key), limit=1))


def content_of(name: str) -> str:
    """Return the hash in the name of a shared object, which may be followed by the number of its copy."""
    return name.partition(".")[0]


def store_shared(bucket: Bucket, key_of: Callable[[str], str], name: str, body: bytes) -> str:
    """Store a body under its name unless it exists; return the name, or that of another copy beside a marked one."""
    copy, chosen = 0, name
    while True:
        try:
            bucket.create(key_of(chosen), body)
        except Exists:
            if is_marked(bucket, key_of(chosen)):
                copy += 1
                chosen = f"{name}.{copy}"
                continue
        return chosen


def check_references(bucket: Bucket, keys: Sequence[str], *, each: ParallelMap = one_by_one) -> None:
    """Check that objects which were just referred to will stay. Call it after the reference was written.

    Raises BeingCollected: the caller gives its reference up.
    """

    def lost(key: str) -> bool:
        if is_marked(bucket, key):
            return True
        try:
            bucket.head(key)
        except Missing:
            return True
        return False

    gone = [key for key, is_lost in zip(keys, each(lost, keys), strict=True) if is_lost]
    if gone:
        raise BeingCollected(
            f"`{gone[0]}` was being deleted as unused at the same time", hint="nothing was started; submit it again"
        )
