"""The life of a cluster with real Ray: it comes up, grows, loses workers, shrinks, goes down, and leaves nothing."""

from __future__ import annotations

import json

import pytest

from tests.integration.cluster.traces import Traces
from tests.support.cluster import Bench
from tests.support.waiting import eventually

# Three tasks that need three nodes at once; each then waits for a file that marks the end of the preemptions.
JOB = """
import os, socket, sys, time
import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

ray.init(address="auto", log_to_driver=False)
blows = sys.argv[1]
spread = placement_group([{"CPU": 1}] * 3, strategy="STRICT_SPREAD")
ray.get(spread.ready())

@ray.remote(num_cpus=1, max_retries=5)
def where(_):
    return socket.gethostname()

@ray.remote(num_cpus=1, max_retries=5)
def square(number):
    deadline = time.monotonic() + 90
    while not os.path.exists(blows) and time.monotonic() < deadline:
        time.sleep(0.2)
    return number * number

held = [PlacementGroupSchedulingStrategy(spread, index) for index in range(3)]
hosts = ray.get([where.options(scheduling_strategy=each).remote(n) for n, each in enumerate(held)])
ray.util.remove_placement_group(spread)
print("HOSTS", len(set(hosts)), flush=True)
found = [square.remote(number) for number in range(6)]
print("RUNNING", flush=True)
print("SQUARES", ray.get(found), flush=True)
"""


@pytest.mark.full
def test_a_cluster_grows_loses_two_workers_ends_its_job_and_leaves_nothing(bench: Bench) -> None:
    (bench.project / "job.py").write_text(JOB)
    blows = bench.root / "workspace" / "blows"
    assert bench.good("cluster", "up") == "small\n"
    assert bench.workers() == []
    status = bench.status()
    assert [node["role"] for node in status["nodes"]] == ["head"]
    assert status["usd_per_hour"] > 0
    argv = ("cluster", "submit", "--job", "squares", "--wait", "small", "--", "python", "job.py", str(blows))
    waiting = bench.start(*argv)
    assert waiting.stdout is not None
    output = ""
    while "RUNNING" not in output:
        line = waiting.stdout.readline()
        assert line, output
        output += line

    first = bench.workers()
    assert len(first) == 3
    traces = Traces(bench.root / "cloud")
    traces.remember()
    # Ray's own ports are among them, on the head and on the workers: else nothing would be proven below.
    assert {"6379", "8265"} <= set(traces.sockets.values())
    assert len({space for space, what in traces.spaces.items() if what.startswith("net")}) >= 4
    bench.cloud.preempt(first[0], notice=True)
    bench.cloud.preempt(first[1], notice=False)
    # The noticed one is drained, so its successor comes while it still has its half minute.
    eventually(lambda: len(set(bench.workers()) - set(first)) >= 2, within_s=60, what="two replacements")
    blows.write_text("now")
    output += waiting.communicate(timeout=600)[0]
    assert waiting.returncode == 0, output
    assert "HOSTS 3" in output
    assert "SQUARES [0, 1, 4, 9, 16, 25]" in output
    found = json.loads(bench.good("cluster", "jobs", "small", "--json"))
    assert [(job["id"].partition("-")[0], job["status"]) for job in found] == [("squares", "SUCCEEDED")]
    eventually(lambda: bench.workers() == [], within_s=90, what="no worker without work")

    assert bench.outlast("cluster", "down").returncode == 2  # it asks, and gets no answer
    output = bench.good("cluster", "down", "--yes")
    assert "small is down; total cost $" in output
    eventually(lambda: not bench.left(), within_s=20, what="nothing left")
    eventually(lambda: not traces.left(), within_s=20, what="no process, namespace, port, cgroup or rule left")
