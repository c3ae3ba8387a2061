"""Map a function over items: in a thread pool, or serially where that is faster or a simulation owns the time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from outlast.store.traits import traits_of_store

A = TypeVar("A")
B = TypeVar("B")
_THREADS = 16
# Within a thread of a pool, whose other threads do the same.
_THREADS_NESTED = 4


class ParallelMap(Protocol):
    """A map that returns the results in the order of the items and raises the first error."""

    def __call__(self, work: Callable[[A], B], items: Sequence[A], /) -> list[B]: ...


class _Pooled(threading.local):
    """Whether this thread belongs to a pool of `in_parallel`."""

    pooled = False


_here = _Pooled()


def in_parallel(work: Callable[[A], B], items: Sequence[A], /) -> list[B]:
    if len(items) < 2:
        return [work(item) for item in items]
    from concurrent.futures import ThreadPoolExecutor

    threads = _THREADS_NESTED if _here.pooled else _THREADS
    with ThreadPoolExecutor(min(threads, len(items)), initializer=_enter_pool) as pool:
        return list(pool.map(work, items))


def _enter_pool() -> None:
    _here.pooled = True


def one_by_one(work: Callable[[A], B], items: Sequence[A], /) -> list[B]:
    return [work(item) for item in items]


def gathered(each: ParallelMap, *reads: Callable[[], Any]) -> list[Any]:
    """Return the results of reads that do not depend on each other."""
    return each(lambda read: read(), reads)


def suited_to(url: str) -> ParallelMap:
    """Return the map for a store: parallel over a network, serial for a folder, which is faster than a thread."""
    return in_parallel if traits_of_store(url).network else one_by_one
