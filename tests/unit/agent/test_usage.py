"""Utilisation: counters become samples and a summary; GPUs; the limit for idle GPUs; pieces in the workspace."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from outlast.agent.attempt import AttemptWriter, LastReport, Verdict
from outlast.agent.idle_gpu import IdleGpuGuard
from outlast.agent.nvml import GpuReading, Gpus
from outlast.agent.usage import Counters, ProcessCounters, UsageMeter, UsageSampler
from outlast.errors import StoreUnreachable
from outlast.formatting.utilisation import advice, usage_text
from outlast.runs import events as ev
from outlast.runs.ended import record_of
from outlast.runs.events import MetricRange
from outlast.runs.state import RunState, fold
from outlast.runs.usage import Sample, Usage, read, write_piece
from outlast.store.bucket import open_bucket
from outlast.workspace import Heartbeat, open_workspace

# The driver's library with two GPUs: the first computes and holds memory.
_DRIVER = """
#include <string.h>
typedef struct { unsigned gpu, memory; } rates;
typedef struct { unsigned long long total, free, used; } memory;
static int numbers[2] = {0, 1};
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = &numbers[index]; return 0; }
int nvmlDeviceGetUtilizationRates(void *handle, rates *found) { found->gpu = *(int *)handle ? 0 : 85; return 0; }
int nvmlDeviceGetMemoryInfo(void *handle, memory *found) {
    found->total = 16000; found->used = *(int *)handle ? 5 : 9000; found->free = 16000 - found->used; return 0; }
"""


def counters(at: float, *, cpu_s: float = 0.0, read_bytes: int = 0, gpus: tuple[float, ...] = ()) -> Counters:
    found = tuple(GpuReading(busy, 4000, 16000) for busy in gpus)
    return Counters(at=at, cpu_s=cpu_s, memory_bytes=1000, memory_total=8000, read_bytes=read_bytes, gpus=found)


def test_two_readings_give_a_sample_and_a_summary() -> None:
    meter = UsageMeter(cpus=4)
    assert meter.add(counters(10.0), wall=0.0) is None
    sample = meter.add(counters(20.0, cpu_s=20.0, read_bytes=5000), wall=100.0)
    assert sample == Sample(at=100.0, seconds=10.0, cpu=0.5, memory_bytes=1000, read=500)
    meter.add(counters(40.0, cpu_s=20.0, read_bytes=5000), wall=120.0)
    assert meter.usage.cpu == pytest.approx(20 / 30 / 4, abs=1e-3)
    assert (meter.usage.seconds, meter.usage.read_bytes, meter.usage.memory_total) == (30.0, 5000, 8000)


def test_a_process_that_ends_takes_its_counters_with_it() -> None:
    meter = UsageMeter(cpus=1)
    meter.add(counters(0.0, cpu_s=100.0, read_bytes=900), wall=0.0)
    sample = meter.add(counters(1.0, cpu_s=2.0, read_bytes=5), wall=1.0)
    assert sample is not None
    assert (sample.cpu, sample.read) == (0.0, 0.0)


def test_gpus_are_idle_only_if_all_are() -> None:
    meter = UsageMeter(cpus=1)
    meter.add(counters(0.0, gpus=(0.0, 0.0)), wall=0.0)
    meter.add(counters(10.0, gpus=(0.0, 0.01)), wall=10.0)
    idle = meter.add(counters(30.0, gpus=(0.0, 0.0)), wall=30.0)
    assert idle is not None
    assert idle.gpu_idle_s == 30.0
    busy = meter.add(counters(40.0, gpus=(0.0, 0.9)), wall=40.0)
    assert busy is not None
    assert busy.gpu_idle_s == 0.0
    assert (meter.usage.gpus, meter.usage.gpu_idle_s, meter.usage.gpu_memory_bytes) == (2, 30.0, 4000)


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_gpus_are_read_from_the_drivers_library(tmp_path: Path) -> None:
    (tmp_path / "driver.c").write_text(_DRIVER)
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "driver.c"], check=True)
    gpus = Gpus(lambda _name: ctypes.CDLL(str(library)))
    assert gpus.read() == (GpuReading(0.85, 9000, 16000), GpuReading(0.0, 5, 16000))


def test_a_machine_without_a_driver_has_no_gpus() -> None:
    def missing(name: str) -> ctypes.CDLL:
        raise OSError(name)

    assert Gpus(missing).read() == ()


@pytest.mark.skipif(not os.path.exists("/proc/self/io"), reason="needs /proc")
def test_the_counters_of_this_process() -> None:
    found = ProcessCounters(Gpus(), lambda: [os.getpid(), 2**22 + 1]).read()
    assert found is not None
    assert found.memory_bytes > 1_000_000
    assert found.cpu_s > 0


class Source:
    """Readings that are ten seconds apart, with five seconds of processor time each."""

    def __init__(self) -> None:
        self.count = 0

    def read(self) -> Counters | None:
        self.count += 1
        return counters(10.0 * self.count, cpu_s=5.0 * self.count)


def test_the_last_samples_are_written_although_the_store_failed_before(tmp_path: Path) -> None:
    bucket = open_bucket(str(tmp_path))
    failed = threading.Event()

    def write(number: int, body: bytes) -> None:
        if not failed.is_set():
            failed.set()
            raise StoreUnreachable("not now")
        write_piece(bucket, "run-1", 2, number, body)

    sampler = UsageSampler(Source(), write, piece_s=0.0)
    assert failed.wait(60)
    sampler.finish(within_s=60)
    samples = read(bucket, "run-1")[2]
    assert len(samples) >= 1
    bucket.create("runs/run-1/utilisation/2/00000099.jsonl", b"{broken\n")
    assert read(bucket, "run-1")[2] == samples


STORY: list[ev.Event] = [
    ev.Submitted(who="ada", at=1.0),
    ev.Placed(attempt=1, cloud="c", region="r", zone="z", type="t", spot=True, price_usd_per_hour=2.0, at=2.0),
    ev.Started(attempt=1, at=3.0),
]


def writer(tmp_path: Path) -> AttemptWriter:
    workspace = open_workspace(str(tmp_path))
    story = workspace.story("run-1")
    for number, event in enumerate(STORY):
        story.append_or_raise(event, nonce=str(number))
    return AttemptWriter(workspace, "run-1", 1, clock=lambda: 5.0, ids=lambda: os.urandom(4).hex())


def test_idle_gpus_are_warned_of_once_and_then_end_the_run(tmp_path: Path) -> None:
    attempt = writer(tmp_path)
    guard = IdleGpuGuard(attempt, limit_s=60.0, grace_s=20.0)
    assert [guard.check(idle_s) for idle_s in (10.0, 35.0, 50.0)] == [False, False, False]
    assert guard.check(61.0)
    state = attempt.story.refresh()
    assert list(state.near) == ["idle_gpu"]
    assert state.limit is not None
    assert state.limit.name == "idle_gpu"
    assert "1m" in state.limit.why
    assert attempt.limit() is not None, "the agent stops the command"


def test_the_end_of_an_attempt_has_step_metrics_and_usage(tmp_path: Path) -> None:
    attempt = writer(tmp_path)
    usage = Usage(seconds=60.0, cpus=2, cpu=0.5)
    last = LastReport(step=12, metrics={"loss": MetricRange(0.5, 0.4, 2.0)}, usage=usage)
    assert attempt.end(Verdict(finished=False, outcome="preempted"), exit_code=143, last=last)
    state = attempt.story.refresh()
    assert (state.step, state.metrics["loss"].low, state.attempts[0].usage) == (12, 0.4, usage)
    later = [
        ev.Placed(attempt=2, cloud="c", region="r", zone="z", type="t", spot=True, price_usd_per_hour=2.0),
        ev.Started(attempt=2, at=9.0),
        ev.Failed(why="hopeless", step=14, metrics={"loss": MetricRange(0.6, 0.45, 0.7)}, usage=usage),
    ]
    whole = fold([*attempt.story.events, *later])
    assert (whole.step, whole.metrics["loss"]) == (14, MetricRange(0.6, 0.4, 2.0))
    assert whole.attempts[1].usage == usage


def test_the_record_of_a_cancelled_run_has_the_step_of_its_last_heartbeat() -> None:
    state = fold([*STORY, ev.Cancelled(who="ada")])
    heartbeat = Heartbeat(attempt=1, step=7, metrics={"loss": MetricRange(1.0, 1.0, 1.0)})
    record = record_of("run-1", state, heartbeat=heartbeat)
    assert (record.state.step, list(record.state.metrics)) == (7, ["loss"])
    old = record_of("run-1", state, heartbeat=Heartbeat(attempt=9, step=7))
    assert old.state.step is None


def ended(usage: Usage) -> RunState:
    return fold([*STORY, ev.Finished(attempt=1, usage=usage)])


def test_advice_about_idle_gpus_small_machines_and_larger_batches() -> None:
    idle = Usage(seconds=7200, cpus=4, cpu=0.9, gpus=1, gpu=0.2, gpu_idle_s=3600, memory_bytes=9, memory_total=10)
    assert "50 % of the time ($2.00)" in advice(ended(idle))[0]
    batch = Usage(seconds=7200, cpus=4, cpu=0.9, gpus=1, gpu=0.9, gpu_memory_bytes=3, gpu_memory_total=16)
    assert "a larger batch" in advice(ended(batch))[0]
    small = Usage(seconds=7200, cpus=8, cpu=0.1, memory_bytes=1, memory_total=10)
    assert "a machine with 1 CPUs" in advice(ended(small))[0]
    assert not advice(ended(Usage(seconds=60, cpus=8, cpu=0.1, memory_bytes=1, memory_total=10)))
    assert "idle for 1h" in usage_text(idle)
