"""The next free number of a name, found by a hint and a few requests for any number of runs."""

from __future__ import annotations

from collections.abc import Callable

from outlast.errors import Missing, WorkspaceError
from outlast.runs.deleted import used_up_to
from outlast.store.bucket import Bucket


def next_number(bucket: Bucket, name: str) -> int:
    """Return the first number after those of all runs and groups of that name, deleted ones included.

    Only a first guess: the caller creates an object under the number, and takes the next one if it exists.
    """

    def taken(number: int) -> bool:
        return any(True for _ in bucket.list(f"runs/{name}-{number}/", limit=1))

    hint, deleted = _hint(bucket, name), used_up_to(bucket, name)
    return first_free(taken, hint if hint > deleted and taken(hint) else deleted)


def first_free(taken: Callable[[int], bool], last: int) -> int:
    """Return the first free number above `last`, by exponential and then binary search."""
    step = 1
    while taken(last + step):
        last, step = last + step, 2 * step
    free = last + step
    while free - last > 1:
        middle = (last + free) // 2
        last, free = (middle, free) if taken(middle) else (last, middle)
    return free


def keep_hint(bucket: Bucket, name: str, number: int) -> None:
    """Store the last number as a hint; a failure is harmless."""
    try:
        bucket.put(f"numbers/{name}", str(number).encode())
    except WorkspaceError:
        pass


def _hint(bucket: Bucket, name: str) -> int:
    try:
        body = bucket.get(f"numbers/{name}")
    except Missing:
        return 0
    # Ignore a hint with too many digits: a name has at most 60 characters.
    return int(body) if body.isdigit() and len(body) <= 15 else 0
