"""Distributed training on two workers with Ray Train, which resumes after the last epoch when a worker is preempted.

The model is a small one in NumPy, so that only Ray is required. Each worker trains on a part of the rows, and the
weights are averaged after every epoch through files in `storage_path`.
"""

import argparse
import json
import os
import tempfile
import time

import numpy
import ray.train
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer


def rows_of(rank, count, *, seed=7):
    """Return this worker's part of synthetic rows, which depend on the seed only."""
    dice = numpy.random.default_rng(seed)
    points = dice.normal(size=(4000, 8))
    labels = (points @ numpy.arange(1, 9) + dice.normal(size=4000) > 0).astype(float)
    return points[rank::count], labels[rank::count]


def one_epoch(weights, points, labels, rate):
    for start in range(0, len(points), 100):
        part, wanted = points[start : start + 100], labels[start : start + 100]
        guessed = 1 / (1 + numpy.exp(-part @ weights))
        weights = weights - rate * part.T @ (guessed - wanted) / len(part)
    return weights


def average(folder, epoch, rank, count, weights):
    """Return the mean over all workers, exchanged through shared files."""
    os.makedirs(folder, exist_ok=True)
    mine = f"{folder}/{epoch}-{rank}.npy"
    numpy.save(f"{mine}.draft.npy", weights)
    os.replace(f"{mine}.draft.npy", mine)
    names = [f"{folder}/{epoch}-{other}.npy" for other in range(count)]
    while not all(os.path.exists(name) for name in names):
        time.sleep(0.05)
    return sum(numpy.load(name) for name in names) / count


def work(config):
    context = ray.train.get_context()
    rank, count = context.get_world_rank(), context.get_world_size()
    points, labels = rows_of(rank, count)
    weights, first = numpy.zeros(8), 0
    if (before := ray.train.get_checkpoint()) is not None:
        with before.as_directory() as folder, open(f"{folder}/state.json", encoding="utf-8") as file:
            state = json.load(file)
        weights, first = numpy.array(state["weights"]), state["epoch"]
        print(f"worker {rank} resumes after epoch {first}", flush=True)
    for epoch in range(first + 1, config["epochs"] + 1):
        weights = average(config["shared"], epoch, rank, count, one_epoch(weights, points, labels, config["rate"]))
        time.sleep(config["pause"])
        right = float(((points @ weights > 0) == (labels > 0.5)).mean())
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/state.json", "w", encoding="utf-8") as file:
                json.dump({"weights": weights.tolist(), "epoch": epoch}, file)
            kept = Checkpoint.from_directory(folder) if rank == 0 else None
            ray.train.report({"epoch": epoch, "accuracy": right}, checkpoint=kept)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--storage", required=True, help="a folder that all machines share, such as one in the workspace"
    )
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait after each epoch")
    given = parser.parse_args()
    trainer = DataParallelTrainer(
        work,
        train_loop_config={
            "epochs": given.epochs,
            "rate": 0.3,
            "pause": given.pause,
            "shared": os.path.join(given.storage, "shared"),
        },
        scaling_config=ScalingConfig(num_workers=given.workers),
        run_config=RunConfig(name="digits", storage_path=given.storage, failure_config=FailureConfig(max_failures=-1)),
    )
    result = trainer.fit()
    print(f"done: epoch {result.metrics['epoch']}, accuracy {result.metrics['accuracy']:.3f}", flush=True)


if __name__ == "__main__":
    main()
