"""The same, done to many things: in threads, or one after the other where a simulation owns the time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

A = TypeVar("A")
B = TypeVar("B")
_THREADS = 16


class Each(Protocol):
    """The results in the order of the items. The first failure is raised."""

    def __call__(self, work: Callable[[A], B], items: Sequence[A], /) -> list[B]: ...


def in_parallel(work: Callable[[A], B], items: Sequence[A], /) -> list[B]:
    if len(items) < 2:
        return [work(item) for item in items]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(_THREADS, len(items))) as pool:
        return list(pool.map(work, items))


def one_by_one(work: Callable[[A], B], items: Sequence[A], /) -> list[B]:
    return [work(item) for item in items]
