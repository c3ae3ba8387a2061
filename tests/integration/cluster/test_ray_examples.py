"""The examples of Ray Tune, Ray Train and joblib on a real cluster, with checkpoints in the workspace."""

from __future__ import annotations

import importlib.util
import shutil

import pytest

from tests.conventions.sources import ROOT
from tests.support.cluster import Bench
from tests.support.waiting import eventually

pytestmark = pytest.mark.cluster
MISSING = [name for name in ("pandas", "pyarrow", "sklearn") if importlib.util.find_spec(name) is None]
JOBLIB = """
from joblib import Parallel, delayed, parallel_config
from ray.util.joblib import register_ray

register_ray()
with parallel_config("ray", n_jobs=2):
    print("JOBLIB", sum(Parallel()(delayed(pow)(number, 2) for number in range(10))), flush=True)
"""


@pytest.mark.skipif(bool(MISSING), reason=f"not installed here: {', '.join(MISSING)}: make clusters")
def test_the_examples_of_ray_run_and_a_lost_worker_costs_an_epoch(bench: Bench) -> None:
    for name in ("ray-tune", "ray-train"):
        shutil.copytree(ROOT / "examples" / name, bench.project / name)
    (bench.project / "parallel.py").write_text(JOBLIB)
    storage = bench.root / "workspace"
    path = bench.project / "outlast.toml"
    path.write_text(path.read_text().replace('idle = "10s"', 'idle = "5m"').replace("max = 3", "max = 2"))
    bench.good("cluster", "up")

    argv = ("python", "train.py", "--epochs", "12", "--pause", "2", "--storage", f"{storage}/train")
    training = bench.start("cluster", "submit", "--dir", "ray-train", "--wait", "small", "--", *argv)
    eventually(lambda: list(storage.glob("train/shared/3-*.npy")), within_s=180, what="three epochs")
    bench.cloud.preempt(bench.workers()[0], notice=False)
    output = training.communicate(timeout=600)[0]
    assert training.returncode == 0, output
    assert "done: epoch 12, accuracy 0.9" in output
    assert "resumes after epoch" in output

    argv = ("python", "tune.py", "--trials", "3", "--rows", "300", "--folds", "2", "--storage", f"{storage}/tune")
    output = bench.good("cluster", "submit", "--dir", "ray-tune", "--wait", "small", "--", *argv)
    assert "best: auc 0." in output
    output = bench.good("cluster", "submit", "--dir", "ray-tune", "--wait", "small", "--", *argv)
    assert "resuming the search" in output
    output = bench.good("cluster", "submit", "--wait", "small", "--", "python", "parallel.py")
    assert "JOBLIB 285" in output
    bench.good("cluster", "down", "--yes")
    eventually(lambda: not bench.left(), within_s=20, what="nothing left")
