"""After three preemptions a training is one run with one curve in Weights & Biases, MLflow and TensorBoard."""

from __future__ import annotations

import glob
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.home import Home
from tests.support.ports import free_port
from tests.support.waiting import eventually

# Attempts 1 and 3 get a notice and exit without a save; the machine of attempt 2 vanishes. All repeat steps.
TRAINER = """
import sys, time, outlast
run = outlast.training(every_steps=10)
hold = {1: 12, 2: 25, 3: 33}.get(run.environment.attempt)
state = run.restore() or {"step": 0}
for step in run.steps(state["step"], total=40):
    state = {"step": step + 1}
    run.log(step, loss=1.0 / (1 + step), attempt=run.environment.attempt)
    run.save_if_due(step, lambda: state)
    if step == hold:
        run._saver.wait()
        print("holding", run.environment.attempt, flush=True)
        while not run.stop_requested:
            time.sleep(0.02)
        sys.exit(0)
run.done()
"""
LAST = 25


@pytest.fixture
def mlflow_server(tmp_path: Path) -> Iterator[str]:
    pytest.importorskip("mlflow")
    port = free_port()
    store = ["--backend-store-uri", f"sqlite:///{tmp_path}/mlflow.db", "--artifacts-destination", str(tmp_path / "art")]
    argv = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    with open(tmp_path / "mlflow.log", "w") as log:
        server = subprocess.Popen([*argv, *store], stdout=log, stderr=log, start_new_session=True)
    yield f"http://127.0.0.1:{port}"
    os.killpg(server.pid, 15)
    server.wait()


def test_one_run_and_one_curve_after_three_preemptions(home: Home, mlflow_server: str) -> None:
    for package in ("wandb", "tensorboard"):
        pytest.importorskip(package)
    import mlflow

    client = mlflow.MlflowClient(mlflow_server)
    eventually(lambda: answers(client), within_s=300, what="the MLflow server")
    home.environment["OUTLAST_LOCAL_MODE"] = "plain"  # machines reach the server on the loopback address
    home.write("train.py", TRAINER)
    home.write(
        "outlast.toml",
        f'[env]\nOUTLAST_TRACKERS = "wandb, mlflow, tensorboard"\n'
        f'MLFLOW_TRACKING_URI = "{mlflow_server}"\nWANDB_MODE = "offline"\nWANDB_SILENT = "true"\n'
        f'PYTHONPATH = "{os.pathsep.join(path for path in sys.path if "site-packages" in path)}"\n',
    )
    process = home.start("run", "--no-pull", "--", sys.executable, "train.py")
    for attempt in (1, 2, 3):
        home.until(lambda n=attempt: f"holding {n}\n" in held(home), f"attempt {attempt} to hold", within_s=600)
        if attempt == 2:
            home.until(lambda: recorded(client)[-1:] == [LAST], "the last value in MLflow", within_s=300)
            home.until(lambda: LAST in events(home) and LAST - 1 in wandb_steps(home), "the files", within_s=300)
        assert home.outlast("preempt", "last", *(["--no-notice"] if attempt == 2 else [])).returncode == 0
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    assert [attempt.outcome for attempt in home.state().attempts][-1] == "finished"
    assert [attempt.resumed_step for attempt in home.state().attempts] == [None, 10, 20, 30]

    assert recorded(client) == list(range(40))
    (run,) = client.search_runs(["0"])
    assert (run.info.status, run.info.run_name) == ("FINISHED", home.only_run())
    assert list(events(home)) == list(range(40))
    steps = wandb_steps(home)
    assert len(steps) == len(set(steps))  # no step twice
    # Offline, the last step of a machine that vanishes is not on its disk yet.
    assert set(range(40)) - set(steps) <= {LAST}
    assert len({Path(path).name for path in wandb_files(home)}) == 1  # the same run


def answers(client: Any) -> bool:
    import requests

    try:
        return bool(client.search_experiments())
    except (requests.RequestException, OSError):
        return False
    except Exception as problem:
        if type(problem).__name__ == "MlflowException":
            return False
        raise


def held(home: Home) -> str:
    return home.log() if home.workspace.runs() else ""


def recorded(client: Any) -> list[int]:
    """Return the steps of the loss in the only run, as the server has them."""
    runs = client.search_runs(["0"])
    assert len(runs) <= 1
    return [metric.step for metric in client.get_metric_history(runs[0].info.run_id, "loss")] if runs else []


def outputs(home: Home, pattern: str) -> list[str]:
    home.outlast("pull", "last", str(home.root / "pulled"))
    return sorted(glob.glob(str(home.root / "pulled" / "**" / pattern), recursive=True))


def events(home: Home) -> dict[int, float]:
    """Return step → loss, as TensorBoard reads all event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    files = outputs(home, "events.out.tfevents.*")
    if not files:
        return {}
    accumulator = EventAccumulator(os.path.dirname(files[0]), size_guidance={"scalars": 0})
    accumulator.Reload()
    scalars = accumulator.Scalars("loss") if "loss" in accumulator.Tags()["scalars"] else []
    assert len({scalar.step for scalar in scalars}) == len(scalars)
    return {scalar.step: scalar.value for scalar in scalars}


def wandb_files(home: Home) -> list[str]:
    return outputs(home, "run-*.wandb")


def wandb_steps(home: Home) -> list[int]:
    """Return the steps with a loss in all offline files."""
    from wandb.proto.wandb_internal_pb2 import Record

    found = []
    for path in wandb_files(home):
        for body in records(Path(path).read_bytes()):
            record = Record()
            record.ParseFromString(body)
            items = {item.key or ".".join(item.nested_key): item.value_json for item in record.history.item}
            if "loss" in items:
                found.append(json.loads(items["_step"]) if "_step" in items else record.history.step.num)
    return found


def records(file: bytes, *, block: int = 32768) -> Iterator[bytes]:
    """Yield the records of a W&B file: LevelDB's log format after a header of seven bytes."""
    assert file[:4] == b":W&B"
    at, whole = 7, b""
    while at + 7 <= len(file):
        if block - at % block < 7:
            at += block - at % block
            continue
        size, kind = struct.unpack_from("<HB", file, at + 4)
        part = file[at + 7 : at + 7 + size]
        if len(part) < size or kind == 0:
            return  # it is still being written
        whole = part if kind in (1, 2) else whole + part
        if kind in (1, 4):
            yield whole
        at += 7 + size
