"""Samples what the command uses of its machine, in a thread: processors, memory, disk, network and GPUs.

Counters are read from /proc: those of the whole machine, or of the command's processes on a machine that others share.
Without /proc nothing is sampled. A sample may take at most half a percent of one processor.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from outlast.agent.nvml import GpuReading, Gpus
from outlast.errors import OutlastError
from outlast.runs.usage import Sample, Usage, line_of

_EVERY_S = 5.0
# At first, for this long, more often: many runs are short.
_FIRST_EVERY_S, _FIRST_S = 1.0, 20.0
# The pause is this many times longer than the processor time of a reading.
_PAUSE_FACTOR = 200
# Stored samples cover this share of the attempt's age, and pieces of them another one.
_SAMPLE_SHARE, _PIECE_SHARE, _PIECE_MAX_S = 0.002, 0.02, 600.0
# A GPU that computes less than this is idle: a program that only holds its memory shows 0.
_IDLE_SHARE = 0.02
_SECTOR_BYTES = 512


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """The state of all counters at one moment; `at` is a monotonic clock."""

    at: float
    cpu_s: float
    memory_bytes: int
    memory_total: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    gpus: tuple[GpuReading, ...] = ()


class CounterSource(Protocol):
    def read(self) -> Counters | None:
        """Read all counters; None when the command has ended. Raises OSError or ValueError without a usable /proc."""


class MachineCounters:
    """The counters of this machine, which runs nothing but the command and the agent."""

    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus
        self._ticks = os.sysconf("SC_CLK_TCK")

    def read(self) -> Counters:
        memory = dict(_memory_lines())
        received, sent = _network_bytes()
        blocks = [fields for fields in map(str.split, _lines("/proc/diskstats")) if _is_disk(fields[2])]
        total = memory.get("MemTotal", 0)
        return Counters(
            at=time.monotonic(),
            cpu_s=self._busy_ticks() / self._ticks,
            memory_bytes=total - memory.get("MemAvailable", total),
            memory_total=total,
            read_bytes=sum(int(fields[5]) for fields in blocks) * _SECTOR_BYTES,
            written_bytes=sum(int(fields[9]) for fields in blocks) * _SECTOR_BYTES,
            received_bytes=received,
            sent_bytes=sent,
            gpus=self._gpus.read(),
        )

    def _busy_ticks(self) -> int:
        """Return the ticks of all processors that were neither idle nor waiting for a disk."""
        user, nice, system, _idle, _wait, interrupts, soft, stolen = map(int, _lines("/proc/stat")[0].split()[1:9])
        return user + nice + system + interrupts + soft + stolen


class ProcessCounters:
    """The counters of some processes, on a machine with other users. Network traffic is not known per process."""

    def __init__(self, gpus: Gpus, members: Callable[[], Iterable[int]]) -> None:
        self._gpus = gpus
        self._members = members
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._page = os.sysconf("SC_PAGE_SIZE")

    def read(self) -> Counters | None:
        cpu_s, memory, read, written = 0.0, 0, 0, 0
        for pid in self._members():
            try:
                fields = _lines(f"/proc/{pid}/stat")[0].rsplit(")", 1)[1].split()
                # With its children that have ended: the sum must not fall when one does.
                cpu_s += sum(map(int, fields[11:15])) / self._ticks
                memory += int(fields[21]) * self._page
                disk = dict(line.split(": ") for line in _lines(f"/proc/{pid}/io"))
                read, written = read + int(disk["read_bytes"]), written + int(disk["write_bytes"])
            except (OSError, LookupError):
                continue  # it has ended meanwhile
        if not memory:
            return None
        total = dict(_memory_lines()).get("MemTotal", 0)
        return Counters(
            at=time.monotonic(),
            cpu_s=cpu_s,
            memory_bytes=memory,
            memory_total=total,
            read_bytes=read,
            written_bytes=written,
            gpus=self._gpus.read(),
        )


class UsageMeter:
    """Turns counters into samples and a summary. No IO."""

    def __init__(self, cpus: int) -> None:
        self._cpus = max(1, cpus)
        self._before: Counters | None = None
        self._cpu_s = self._gpu_s = 0.0
        self.usage = Usage(cpus=self._cpus)
        self._idle_s = 0.0

    def add(self, now: Counters, *, wall: float) -> Sample | None:
        """Add a reading, at `wall` seconds since 1970. None for the first one."""
        before, self._before = self._before, now
        if before is None or now.at <= before.at:
            return None
        seconds = now.at - before.at
        cpu_s = min(max(0.0, now.cpu_s - before.cpu_s), self._cpus * seconds)
        busy = tuple(gpu.busy for gpu in now.gpus)
        idle = bool(busy) and max(busy) < _IDLE_SHARE
        self._idle_s = self._idle_s + seconds if idle else 0.0
        moved = [max(0, after - then) for after, then in zip(_traffic(now), _traffic(before), strict=True)]
        self._summarize(now, seconds, cpu_s, busy, idle, moved)
        return Sample(
            at=round(wall, 1),
            seconds=round(seconds, 1),
            cpu=round(cpu_s / seconds / self._cpus, 4),
            memory_bytes=now.memory_bytes,
            read=round(moved[0] / seconds),
            written=round(moved[1] / seconds),
            received=round(moved[2] / seconds),
            sent=round(moved[3] / seconds),
            gpu=busy,
            gpu_memory=tuple(gpu.memory_bytes for gpu in now.gpus),
            gpu_idle_s=round(self._idle_s, 1),
        )

    def _summarize(
        self, now: Counters, seconds: float, cpu_s: float, busy: tuple[float, ...], idle: bool, moved: list[int]
    ) -> None:
        had = self.usage
        whole = had.seconds + seconds
        self._cpu_s += cpu_s
        self._gpu_s += seconds * sum(busy) / len(busy) if busy else 0.0
        self.usage = Usage(
            seconds=round(whole, 1),
            cpus=self._cpus,
            cpu=round(self._cpu_s / whole / self._cpus, 4),
            memory_bytes=max(had.memory_bytes, now.memory_bytes),
            memory_total=now.memory_total,
            read_bytes=had.read_bytes + moved[0],
            written_bytes=had.written_bytes + moved[1],
            received_bytes=had.received_bytes + moved[2],
            sent_bytes=had.sent_bytes + moved[3],
            gpus=len(busy),
            gpu=round(self._gpu_s / whole, 4),
            gpu_memory_bytes=max([had.gpu_memory_bytes, *(gpu.memory_bytes for gpu in now.gpus)]),
            gpu_memory_total=max((gpu.memory_total for gpu in now.gpus), default=0),
            gpu_idle_s=round(had.gpu_idle_s + seconds * idle, 1),
        )


class UsageSampler:
    """Samples in a thread until it is stopped, and passes pieces of samples to `write(number, body)`."""

    def __init__(self, source: CounterSource, write: Callable[[int, bytes], None], *, piece_s: float) -> None:
        self.meter = UsageMeter(_cpus())
        # The newest sample; None until there is one.
        self.latest: Sample | None = None
        self._source = source
        self._write = write
        self._piece_s = piece_s
        self._number = 1
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="usage", daemon=True)
        self._thread.start()

    def finish(self, *, within_s: float) -> None:
        """Stop, and wait for the last piece."""
        self._stop.set()
        self._thread.join(within_s)

    def _run(self) -> None:
        began = written_at = time.monotonic()
        over, body = False, b""
        while True:
            now, cpu_began = time.monotonic(), time.thread_time()
            try:
                counters = self._source.read()
                sample = self.meter.add(counters, wall=time.time()) if counters is not None else None
            except (OSError, ValueError, IndexError):
                return  # no /proc, or one that we cannot read
            took_s, age_s = time.thread_time() - cpu_began, now - began
            if sample is not None:
                self.latest = sample
                body += line_of(sample)
            if body and (over or now - written_at >= max(self._piece_s, min(_PIECE_MAX_S, _PIECE_SHARE * age_s))):
                body, written_at = self._send(body), now
            if over:
                return
            every_s = _FIRST_EVERY_S if age_s < _FIRST_S else _EVERY_S
            over = self._stop.wait(max(every_s, _PAUSE_FACTOR * took_s, _SAMPLE_SHARE * age_s))

    def _send(self, body: bytes) -> bytes:
        """Write a piece. Returns the samples that the store did not accept, for the next one."""
        try:
            self._write(self._number, body)
        except OutlastError:
            return body[-65536:].partition(b"\n")[2] if len(body) > 65536 else body
        self._number += 1
        return b""


def sampler_for(
    members: Callable[[], Iterable[int]], write: Callable[[int, bytes], None], *, alone: bool, piece_s: float
) -> UsageSampler | None:
    """Start to sample; `alone`: nothing else runs on this machine. None without /proc."""
    if not os.path.exists("/proc/stat"):
        return None
    gpus = Gpus()
    source: CounterSource = MachineCounters(gpus) if alone else ProcessCounters(gpus, members)
    return UsageSampler(source, write, piece_s=piece_s)


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _traffic(counters: Counters) -> tuple[int, int, int, int]:
    return counters.read_bytes, counters.written_bytes, counters.received_bytes, counters.sent_bytes


def _lines(path: str) -> list[str]:
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read().splitlines()


def _memory_lines() -> Iterable[tuple[str, int]]:
    for line in _lines("/proc/meminfo"):
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            yield name, int(rest.split()[0]) * 1024


def _network_bytes() -> tuple[int, int]:
    received = sent = 0
    for line in _lines("/proc/net/dev")[2:]:
        name, _, rest = line.partition(":")
        if name.strip() != "lo":
            fields = rest.split()
            received, sent = received + int(fields[0]), sent + int(fields[8])
    return received, sent


def _is_disk(name: str) -> bool:
    """Return whether this is a whole disk: its partitions and mappings would be counted twice."""
    return os.path.exists(f"/sys/block/{name}/device")
