"""`outlast.Executor` on real machines of the local cloud: results, exceptions, cancellation, preemption, crashes."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast.executor.records import PoolKeys
from outlast.store.bucket import open_bucket
from outlast.store.shared import marks_of
from tests.integration.executor.team import executor, preempt_one
from tests.support.home import Home
from tests.support.waiting import eventually, patience

cloudpickle = pytest.importorskip("cloudpickle", reason="the extra `executor` is not installed")
# The machines do not have this module: its functions travel with their code, as those of a script.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Refused(Exception):
    """An exception of a script."""


def square(number: int) -> int:
    return number * number


def refuse(number: int) -> None:
    raise Refused(f"refused {number}")


def wait_for(path: str, value: Any) -> Any:
    while not os.path.exists(path):
        threading.Event().wait(0.01)
    return value


def shared(home: Home, name: str) -> str:
    """Return a path that machines see as well: their other folders may be private."""
    return os.path.join(home.environment["OUTLAST_WORKSPACE"], "tests", name)


def test_results_exceptions_and_order_are_those_of_any_executor(here: Home) -> None:
    import numpy

    with executor(max_workers=1) as pool:
        assert list(pool.map(square, range(8))) == [n * n for n in range(8)]
        assert list(pool.map(lambda a, b: a + b, range(7), range(7), chunksize=3)) == [2 * n for n in range(7)]
        with pytest.raises(Refused, match="refused 3") as raised:
            pool.submit(refuse, 3).result()
        assert "in refuse" in str(raised.value.__cause__)
        with pytest.raises(TypeError, match="the result of the call cannot be pickled"):
            pool.submit(threading.Lock).result()
        with pytest.raises(TypeError, match="pickle"):
            pool.submit(square, threading.Lock())  # type: ignore[arg-type]
        # One array in two places of a call stays one object; it is stored once for all calls.
        large = numpy.zeros(50_000)
        same = [pool.submit(lambda a, b: (a is b, float(a.sum())), large, large) for _ in range(3)]
        assert [one.result() for one in same] == [(True, 0.0)] * 3
        keys = PoolKeys(pool._pool.id)
        bucket = open_bucket(here.environment["OUTLAST_WORKSPACE"])
        assert len(list(bucket.list(keys.blobs))) == 1
        assert len(pool.workers) == 1
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(square, 1)
    # Nothing but the record is left of the pool, and no machine.
    for prefix in (keys.calls, keys.queue, keys.results, keys.blobs):
        assert list(bucket.list(prefix)) == []
    eventually(lambda: not here.machines(), within_s=30, what="the end of the machines")


def test_a_worker_that_the_workspace_refuses_breaks_the_pool(here: Home) -> None:
    """The code of the workers is being collected: their submission is refused, and every call must learn that."""
    with executor(max_workers=1) as pool:
        bucket = open_bucket(here.environment["OUTLAST_WORKSPACE"])
        for key in pool._pool.fleet._prepared.code.shared_keys:
            bucket.create(marks_of(key) + "collector", b"")
        with pytest.raises(concurrent.futures.BrokenExecutor, match="being deleted"):
            pool.submit(square, 2).result(timeout=patience(60))
        with pytest.raises(concurrent.futures.BrokenExecutor):
            pool.submit(square, 2)


def test_a_call_is_cancelled_only_before_a_worker_has_it(here: Home) -> None:
    gate = shared(here, "gate")
    with executor(max_workers=1) as pool:
        first, second, third = [pool.submit(wait_for, gate, number) for number in range(3)]
        eventually(first.running, within_s=60, what="the first call")
        assert not first.cancel()
        assert second.cancel()
        assert second.cancelled()
        os.makedirs(os.path.dirname(gate))
        Path(gate).touch()
        assert (first.result(), third.result()) == (0, 2)
        with pytest.raises(concurrent.futures.CancelledError):
            second.result()


def test_a_noticed_call_continues_from_its_checkpoint(here: Home) -> None:
    """The callable saves itself at the notice, and goes on elsewhere."""

    class Count:
        def __init__(self) -> None:
            self.done = 0
            self.moves = 0

        def __call__(self, gate: str) -> tuple[int, int]:
            # The first machine counts until it is preempted.
            while self.done < 5 or not self.moves:
                if self.done < 5:
                    self.done += 1
                os.makedirs(os.path.dirname(gate), exist_ok=True)
                Path(gate).touch()
                threading.Event().wait(0.01)
            return self.done, self.moves

        def checkpoint(self, gate: str) -> Any:
            self.moves += 1
            return outlast.DelayedCall(self, gate)

    gate = shared(here, "gate")
    with executor(max_workers=1) as pool:
        future = pool.submit(Count(), gate)
        eventually(lambda: os.path.exists(gate), within_s=60, what="the call")
        eventually(lambda: preempt_one(here.cloud, notice=True), within_s=60, what="a machine")
        assert future.result(timeout=patience(120)) == (5, 1)


def test_a_call_that_kills_its_process_fails_alone(here: Home) -> None:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with executor(max_workers=1) as pool:
        killed, fine = pool.submit(die), pool.submit(square, 4)
        with pytest.raises(outlast.CallFailed, match="the process of the call died with signal SIGKILL, 3 times"):
            killed.result()
        assert fine.result() == 16


def test_wrong_arguments_are_reported_before_anything_is_launched(here: Home) -> None:
    for options, text in (
        ({"max_workers": 0}, "max_workers: expected an integer of at least 1"),
        ({"min_workers": 9}, "min_workers: expected at most max_workers"),
        ({"idle": "soon"}, "idle: invalid duration"),
        ({"machine": {"nodes": 2}}, "nodes: a worker of an Executor is one machine"),
    ):
        with pytest.raises(outlast.UsageError, match=text):
            outlast.Executor(**options)  # type: ignore[arg-type]
    with pytest.raises(outlast.SpecError, match="gppu: unknown argument"):
        outlast.Executor(gppu="T4")  # type: ignore[call-arg]
    assert here.workspace.runs() == []


def test_map_submits_at_once_respects_its_timeout_and_cancels_the_rest(here: Home) -> None:
    gate = shared(here, "gate")
    with executor(max_workers=1) as pool:
        with pytest.raises(TimeoutError):
            list(pool.map(lambda n: wait_for(gate, n), range(20), timeout=0.2))
        taken: list[int] = []
        lazy = pool.map(square, iter(lambda: taken.append(0) or len(taken), 50), buffersize=3)
        assert len(taken) == 3
        os.makedirs(os.path.dirname(gate), exist_ok=True)
        Path(gate).touch()
        assert [next(lazy), next(lazy)] == [1, 4]
        assert len(taken) == 5
        lazy.close()  # type: ignore[attr-defined]
        eventually(lambda: not pool._pool.pending(), within_s=60, what="the calls that had begun")
        for wrong in ({"chunksize": 0}, {"buffersize": 0}):
            with pytest.raises(ValueError):
                pool.map(square, [1], **wrong)


def test_cancelled_calls_are_never_executed_and_all_others_are_once(here: Home) -> None:
    """Calls are cancelled at every stage: not written, being written, queued, claimed."""
    log = Path(shared(here, "executed"))
    log.mkdir(parents=True)

    def work(number: int) -> int:
        (log / f"{number}-{os.getpid()}-{time.monotonic_ns()}").touch()
        return number

    with executor(max_workers=2) as pool:
        pool.submit(square, 1).result()
        futures = [pool.submit(work, number) for number in range(300)]
        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            cancelled = list(threads.map(lambda future: future.cancel(), futures))
    assert [future.cancelled() for future in futures] == cancelled
    assert all(future.cancelled() or future.result() == number for number, future in enumerate(futures))
    executed = sorted(int(path.name.split("-")[0]) for path in log.iterdir())
    assert executed == [number for number, gone in enumerate(cancelled) if not gone]
    assert any(cancelled)


def test_an_exception_that_does_not_survive_pickling_keeps_its_traceback(here: Home) -> None:
    class Fussy(Exception):
        def __init__(self, code: int, text: str) -> None:
            super().__init__(text)

    def fail() -> None:
        raise Fussy(3, "no such table")

    with executor(max_workers=1) as pool, pytest.raises(outlast.CallFailed, match="cannot be loaded here") as raised:
        pool.submit(fail).result()
    assert "Fussy: no such table" in str(raised.value.__cause__)


@pytest.mark.parametrize("how", ["pass", "pool.shutdown(wait=False)", "del pool"])
def test_calls_are_completed_at_the_end_of_the_interpreter(here: Home, how: str) -> None:
    lines = ["import outlast", "pool = outlast.Executor(max_workers=1, min_workers=1)"]
    lines += ["futures = [pool.submit(lambda n: n + 1, n) for n in range(3)]"]
    lines += ["for one in futures: one.add_done_callback(lambda done: print(done.result()))", how]
    script = here.write("script.py", "\n".join(lines))
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=here.project,
        env=here.environment,
        capture_output=True,
        text=True,
        timeout=patience(120),
        check=False,
    )
    assert (done.returncode, sorted(done.stdout.split()), done.stderr) == (0, ["1", "2", "3"], "")


@pytest.mark.full
def test_workers_that_cannot_start_break_the_pool(here: Home) -> None:
    """Without this, a call would wait for ever, and each attempt would be billed."""
    with executor(max_workers=1, setup="echo no such driver; exit 3") as pool:
        future = pool.submit(square, 1)
        with pytest.raises(concurrent.futures.BrokenExecutor, match="workers fail: executor-3 failed"):
            future.result(timeout=patience(300))
    assert here.workspace.runs() == ["executor-1", "executor-2", "executor-3"]


@pytest.mark.full
def test_two_hundred_calls_survive_preemptions_and_killed_workers(here: Home) -> None:
    """Four machines, one preempted or its worker killed every five seconds: each result arrives once."""
    log = Path(shared(here, "executed"))
    log.mkdir(parents=True)

    def work(number: int) -> int:
        threading.Event().wait(0.5)
        (log / f"{number}-{os.getpid()}-{time.monotonic_ns()}").touch()
        return number * 3

    delivered: list[int] = []
    with executor(max_workers=4) as pool:
        futures = [pool.submit(work, number) for number in range(200)]
        for future in futures:
            future.add_done_callback(lambda done: delivered.append(done.result()))
        rounds = 0
        while not all(future.done() for future in futures):
            concurrent.futures.wait(futures, timeout=5.0)
            rounds += 1
            if rounds % 3 == 0:
                _kill_a_worker(here)
            else:
                preempt_one(here.cloud, notice=rounds % 2 == 0)
        assert [future.result(timeout=patience(300)) for future in futures] == [number * 3 for number in range(200)]
    assert sorted(delivered) == [number * 3 for number in range(200)]
    assert {path.name.split("-")[0] for path in log.iterdir()} == {str(number) for number in range(200)}
    attempts = [len(here.state(run).attempts) for run in here.workspace.runs()]
    assert sum(attempts) > 4


def _kill_a_worker(home: Home) -> None:
    """Kill the command of one worker, as a machine without memory would."""
    from tests.support.home import kill_9, processes_mentioning

    for pid in processes_mentioning(str(home.root)):
        try:
            argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"outlast.executor.worker" in argv:
            kill_9(pid)
            return
