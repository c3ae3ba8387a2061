"""A cluster whose head and workers mount a volume, with a folder for the cluster."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.support.cluster import FILE, Bench

# A task on a worker, as the head has no processor to give.
JOB = """
import os, socket, sys
import ray

ray.init(address="auto", log_to_driver=False)

@ray.remote(num_cpus=1)
def look():
    with open("/results/by-a-worker", "w") as file:
        file.write(socket.gethostname())
    return sorted(os.listdir("/data"))

print("HERE", sorted(os.listdir("/data")), "THERE", ray.get(look.remote()), flush=True)
"""
VOLUMES = '[volumes]\n"/data" = "demos"\n"/results" = "demos/runs/{run}"\n'


@pytest.mark.cluster
def test_head_and_workers_mount_a_volume_that_cannot_be_deleted_meanwhile(bench: Bench) -> None:
    (bench.project / "outlast.toml").write_text(FILE + VOLUMES)
    refused = bench.outlast("cluster", "up")
    assert refused.returncode == 2
    assert "no volume `demos`" in refused.stderr
    assert bench.cloud.machines() == []
    bench.good("volume", "create", "demos", "--size", "1GB")
    place = Path(json.loads(bench.good("volume", "show", "demos", "--json"))["source"])
    (place / "two.txt").write_text("22")
    (bench.project / "job.py").write_text(JOB)
    assert bench.good("cluster", "up") == "small\n"
    output = bench.good("cluster", "submit", "--job", "look", "--wait", "small", "--", "python", "job.py")
    assert "HERE ['runs', 'two.txt'] THERE ['runs', 'two.txt']" in output
    asked_at = bench.clusters.all()[0].asked_at
    folder = place / "runs" / f"{time.strftime('%Y-%m-%d', time.gmtime(asked_at))}-small"
    assert (folder / "by-a-worker").read_text()
    kept = bench.outlast("volume", "delete", "demos", "--yes")
    assert kept.returncode == 21
    assert "is mounted by the cluster small" in kept.stderr
    bench.good("cluster", "down", "--yes")
    bench.good("volume", "delete", "demos", "--yes")
