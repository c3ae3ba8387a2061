"""What attempts use of their machines: samples in numbered pieces per attempt, and a summary of each attempt.

A sample is the mean over the seconds before it. Samples become rarer as an attempt grows older, so that a week has a
few thousand. Invalid lines are skipped: utilisation never causes a failure.
"""

# No `from __future__ import annotations` here: `runs/events.py` has a `Usage` in two events.

import msgspec

from outlast.errors import Exists
from outlast.store.bucket import Bucket
from outlast.store.codec import UNREADABLE
from outlast.store.parallel import in_parallel


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one attempt used: means and totals over the time of its command. Shares are between 0 and 1."""

    seconds: float = 0.0
    cpus: int = 0
    # The mean share of all processors, and the largest amounts of memory and of the machine's.
    cpu: float = 0.0
    memory_bytes: int = 0
    memory_total: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    gpus: int = 0
    # The mean share of all GPUs; the fullest GPU's memory; the time in which all GPUs were idle.
    gpu: float = 0.0
    gpu_memory_bytes: int = 0
    gpu_memory_total: int = 0
    gpu_idle_s: float = 0.0


class Sample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The utilisation over the last `seconds`; rates are bytes per second. `gpu` and `gpu_memory` have one per GPU."""

    at: float
    seconds: float = 0.0
    cpu: float = 0.0
    memory_bytes: int = 0
    read: float = 0.0
    written: float = 0.0
    received: float = 0.0
    sent: float = 0.0
    gpu: tuple[float, ...] = ()
    gpu_memory: tuple[int, ...] = ()
    # How long all GPUs have been idle now.
    gpu_idle_s: float = 0.0


_decoder = msgspec.json.Decoder(Sample)


def piece_key(run: str, attempt: int, number: int) -> str:
    return f"runs/{run}/utilisation/{attempt}/{number:08d}.jsonl"


def line_of(sample: Sample) -> bytes:
    return msgspec.json.encode(sample) + b"\n"


def write_piece(bucket: Bucket, run: str, attempt: int, number: int, body: bytes) -> None:
    """Create one piece. An attempt has one writer: if the piece exists, an earlier response was lost."""
    try:
        bucket.create(piece_key(run, attempt, number), body, durable=False)
    except Exists:
        pass


def read(bucket: Bucket, run: str) -> dict[int, tuple[Sample, ...]]:
    """Return the samples of each attempt that has some, oldest first."""
    keys = [entry.key for entry in bucket.list(f"runs/{run}/utilisation/")]
    found: dict[int, list[Sample]] = {}
    for key, body in zip(keys, in_parallel(bucket.get, keys), strict=True):
        number = key.split("/")[-2]
        if number.isdecimal():
            found.setdefault(int(number), []).extend(_samples(body))
    return {number: tuple(found[number]) for number in sorted(found)}


def _samples(body: bytes) -> list[Sample]:
    samples = []
    for line in body.splitlines():
        try:
            samples.append(_decoder.decode(line))
        except UNREADABLE:
            continue
    return samples
