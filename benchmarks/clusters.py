"""Clusters: each step of outlast, compared with `ray start` on existing machines.

    python benchmarks/clusters.py [--repeat N]

The comparison uses four machines with open ssh sessions, and runs `ray start`, `ray job submit` and `ray stop` on
them. The overhead of outlast is machines, records, token, code and the autoscaler's rounds. Both alternate within one
run, each in a separate cloud, with the same Ray, settings and job.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from measure import Table, print_tables, row

from outlast.clouds.cloud import Boot, Requirements
from outlast.clouds.local.cloud import LocalCloud
from outlast.cluster.raystart import HEALTH_CHECKS
from outlast.machines import sshfiles
from outlast.machines.ssh import Link

BIN = os.path.dirname(sys.executable)
WORKERS = 3
FILE = f"""
[cluster]
name = "bench"
[cluster.head]
type = "local-1"
[cluster.workers.cpu]
type = "local-1"
max = {WORKERS}
"""
# Prints the time of its first line, and ends when three nodes have executed a part of it.
JOB = """
import time
print("first line", flush=True)
import ray
ray.init(address="auto", log_to_driver=False)
from ray.util.placement_group import placement_group
ray.get(placement_group([{"CPU": 1}] * 3, strategy="STRICT_SPREAD").ready())
print("three nodes", flush=True)
"""


class Times(dict[str, float]):
    def timed(self, what: str, began: float) -> None:
        self[what] = time.monotonic() - began


class Ours:
    def __init__(self, root: str) -> None:
        self.project = f"{root}/project"
        os.makedirs(self.project)
        for name, text in (("outlast.toml", FILE), ("job.py", JOB)):
            with open(f"{self.project}/{name}", "w", encoding="utf-8") as file:
                file.write(text)
        self.environment = {
            **os.environ,
            "OUTLAST_WORKSPACE": f"{root}/workspace",
            "OUTLAST_LOCAL_CLOUD": f"{root}/cloud",
        }

    def outlast(self, *argv: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [f"{BIN}/outlast", "cluster", *argv],
            cwd=self.project,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self) -> Times:
        times = Times()
        began = time.monotonic()
        assert self.outlast("up").wait() == 0
        times.timed("head up", began)
        try:
            began = time.monotonic()
            job = self.outlast("submit", "--wait", "bench", "--", "python", "job.py")
            _until(job, "first line")
            times.timed("submit to first line", began)
            began = time.monotonic()
            _until(job, "three nodes")
            times.timed(f"{WORKERS} workers", began)
            job.communicate()
        finally:
            began = time.monotonic()
            assert self.outlast("down").wait() == 0
            times.timed("down", began)
        return times


class ByHand:
    """Create four machines and log in to them before the measurement."""

    def __init__(self, root: str) -> None:
        self.cloud = LocalCloud(f"{root}/cloud")
        offer = self.cloud.offers(Requirements(type="local-1", spot=False))[0]
        names = [f"hand-{number}" for number in range(WORKERS + 1)]
        for name in names:
            self.cloud.launch(offer, name, boot=Boot(ssh_keys=(sshfiles.public_key(),)), labels={})
        self.links = [Link(self.cloud, name) for name in names]
        for link in self.links:
            link.run("true")
        self.address = self.cloud.machine(names[0]).address
        settings = {
            **HEALTH_CHECKS,
            "RAY_memory_monitor_refresh_ms": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "PATH": f"{BIN}:/usr/bin:/bin",
        }
        # Without it, the output of the job appears only at its end.
        settings["PYTHONUNBUFFERED"] = "1"
        settings |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}
        self.prefix = "; ".join(f"export {name}={value}" for name, value in settings.items())

    def there(self, link: Link, line: str) -> None:
        link.run(f"{self.prefix}; {line}")

    def run(self) -> Times:
        times = Times()
        head, workers = self.links[0], self.links[1:]
        memory = "--object-store-memory=100000000 --disable-usage-stats"
        head.run("mkdir -p job; cat > job/job.py", input=JOB.encode())
        began = time.monotonic()
        self.there(head, f"ray start --head --port=6379 --num-cpus=0 --include-dashboard=true {memory} > log 2>&1")
        self.there(head, "until curl -so /dev/null http://127.0.0.1:8265; do sleep 0.1; done")
        times.timed("head up", began)
        began = time.monotonic()
        submit = "ray job submit --address http://127.0.0.1:8265 --working-dir job -- python job.py"
        job = subprocess.Popen(
            [*head.argv(), "--", f"{self.prefix}; {submit}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        _until(job, "first line")
        times.timed("submit to first line", began)
        began = time.monotonic()
        with ThreadPoolExecutor(WORKERS) as pool:
            start = f"ray start --address={self.address}:6379 --num-cpus=1 {memory} > log 2>&1"
            list(pool.map(lambda link: self.there(link, start), workers))
        _until(job, "three nodes")
        times.timed(f"{WORKERS} workers", began)
        job.communicate()
        began = time.monotonic()
        with ThreadPoolExecutor(WORKERS + 1) as pool:
            list(pool.map(lambda link: self.there(link, "ray stop > /dev/null 2>&1"), self.links))
        times.timed("down", began)
        return times

    def close(self) -> None:
        for machine in self.cloud.machines():
            self.cloud.delete(machine.name)
            sshfiles.forget_machine(machine.name)


def _until(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == text:
            return
    raise AssertionError(f"`{text}` was never printed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    ours: list[Times] = []
    manual: list[Times] = []
    for _ in range(given.repeat):
        root = tempfile.mkdtemp(prefix="outlast-bench-")
        os.environ["HOME"] = root
        try:
            by_hand = ByHand(f"{root}/hand")
            try:
                manual.append(by_hand.run())
            finally:
                by_hand.close()
            ours.append(Ours(f"{root}/ours").run())
        finally:
            shutil.rmtree(root, ignore_errors=True)
    rows = []
    for step in manual[0]:
        rows.append(row(f"{step}, manual", [times[step] for times in manual], "s"))
        rows.append(row(f"{step}, outlast", [times[step] for times in ours], "s"))
    whole = [sum(times.values()) - times["down"] for times in manual]
    own = [sum(times.values()) - times["down"] for times in ours]
    share = median(mine / theirs - 1 for mine, theirs in zip(own, whole, strict=True))
    rows.append(row("all but down, manual", whole, "s"))
    overhead = {"against": f"overhead {share:+.0%}", "goal": "overhead < 20 %", "met": share < 0.2}
    rows.append(row("all but down, outlast", own, "s", **overhead))
    load = os.getloadavg()[0]
    times = f"{given.repeat} times each, in turns; load {load:.1f}"
    print_tables(Table(f"A cluster of a head and {WORKERS} workers ({times})", rows))


if __name__ == "__main__":
    main()
