"""The same, done to many things: in threads, or one after the other where a simulation owns the time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from outlast.store.traits import traits_of_store

A = TypeVar("A")
B = TypeVar("B")
_THREADS = 16
# In a thread of a pool already: its siblings do the same.
_THREADS_NESTED = 4


class ParallelMap(Protocol):
    """The results in the order of the items. The first failure is raised."""

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


def suited_to(url: str) -> ParallelMap:
    """In parallel where every call waits for a network; a folder answers faster than a thread starts, and a simulation
    owns the time."""
    return in_parallel if traits_of_store(url).network else one_by_one
