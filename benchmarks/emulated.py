"""Submit to the first line of output through the emulated Google Cloud, with a workspace in a bucket there.

    python benchmarks/emulated.py [--times 5] [--idle 60] [--many 20]

Prints the phases with the requests of each, the requests of an idle hour, many submits at once, and a group. The local
cloud alternates with it, since only ratios are meaningful on a shared computer. The emulator is a separate process that
logs each request; the times of requests are its own.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from journey import Journey, Stamps, submitted
from measure import OUTLAST, PYTHON, Home, Row, Table, once, print_tables, row, until

from outlast.clouds.cloud import Boot, Requirements
from outlast.clouds.gcp.cloud import GcpCloud
from outlast.clouds.local.cloud import LocalCloud
from outlast.kit import boot_script
from outlast.runs import events as ev
from outlast.runs.logs import LogReader
from outlast.store import access
from outlast.workspace import open_workspace

_TYPE, _ZONE, _BUCKET = "e2-standard-2", "us-central1-a", "bench-box"
_IMAGE = "ready"
_MACHINE = ["--cloud", "gcp", "--type", _TYPE, "--zone", _ZONE, "--image", _IMAGE]
_COMMAND = ["sh", "-c", "date +%s.%N; exec sleep 600"]
_GROUP = """
name = "many"
[machine]
cloud = "gcp"
type = "{type}"
zones = ["{zone}"]
image = "{image}"
[tasks.worker]
command = ["sh", "-c", "date +%s.%N; exec sleep 600"]
count = "{count}"
"""


class Request(NamedTuple):
    """One request as the emulator received it."""

    at: float
    took_s: float
    method: str
    path: str

    @property
    def what(self) -> str:
        """Its kind: the method with the part of the workspace, or of the API, that it concerns."""
        inside, _, key = self.path.partition(f"/{_BUCKET}/ws/")
        if not key and inside.endswith(f"/{_BUCKET}"):
            return f"bucket: {self.method} list"
        if not key:
            return f"API: {self.method} {'/'.join(self.path.split('/')[-2:])[:40]}"
        parts = key.split("/")
        return f"bucket: {self.method} " + (f"runs/RUN/{parts[2]}" if parts[0] == "runs" else parts[0])


def serve(folder: str) -> int:
    """Serve the emulator, and log each request. Runs in a separate process."""
    from outlast_gcp_emulator.endpoint import Endpoint
    from outlast_gcp_emulator.environment import write_files

    endpoint = Endpoint(f"{folder}/served", cloud=LocalCloud(f"{folder}/cloud"))
    respond = endpoint.server.respond
    with open(f"{folder}/requests", "a", buffering=1, encoding="utf-8") as log:

        def logged(request: Any) -> Any:
            began = time.time()
            try:
                return respond(request)
            finally:
                path = urllib.parse.unquote(request.path)
                if prefix := request.query.get("prefix"):
                    path = f"/{_BUCKET}/{prefix}"
                entry = Request(began, time.time() - began, request.method, path)
                log.write(json.dumps(entry) + "\n")

        endpoint.server.respond = logged
        write_files(endpoint.root, endpoint.url)
        endpoint.start()
        print(endpoint.url, flush=True)
        signal.sigwait([signal.SIGTERM])
        endpoint.stop()
    return 0


class Emulated(Home):
    """A home whose cloud is the emulated one and whose workspace is a bucket of it."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.server = subprocess.Popen(
            [PYTHON, os.path.abspath(__file__), "--serve", root], stdout=subprocess.PIPE, text=True
        )
        assert self.server.stdout is not None
        url = self.server.stdout.readline().strip()
        from outlast_gcp_emulator.environment import PROJECT, variables

        given = variables(f"{root}/served", url)
        self.environment |= {**given, "OUTLAST_WORKSPACE": f"gs://{_BUCKET}/ws"}
        for name in ("OUTLAST_KIT_CACHE",):
            if name in os.environ:
                self.environment[name] = os.environ[name]
        os.environ.update(given)
        cloud = GcpCloud(PROJECT)
        cloud.client.call("storage", "POST", "b", query={"project": PROJECT}, body={"name": _BUCKET})
        self.workspace = open_workspace(f"gs://{_BUCKET}/ws")
        self._build_image(cloud)

    def _build_image(self, cloud: GcpCloud) -> None:
        """Create an image of a machine that has unpacked the agent kit."""
        program = boot_script.program_script("agent", "outlast.agent")
        script = boot_script.boot_script("agent", "outlast.agent").removesuffix(program) + "shutdown -h now\n"
        given = {**boot_script.metadata(self.workspace.bucket), **access.metadata(self.workspace.url, os.environ)}
        offer = cloud.offers(Requirements(type=_TYPE, zones=(_ZONE,)))[0]
        cloud.launch(offer, "builder", boot=Boot(script=script, metadata=given), labels={"kind": "bench"})
        until(lambda: cloud.machine("builder").status == "stopped", "the kit is unpacked", 300.0)
        cloud.snapshot("builder", _IMAGE)
        cloud.delete("builder")

    def requests(self, since: float = 0.0, until: float = float("inf")) -> list[Request]:
        with open(f"{self.root}/requests", encoding="utf-8") as file:
            found = [Request(*json.loads(line)) for line in file]
        return [one for one in found if since <= one.at < until]

    def cancel(self, *runs: str) -> None:
        subprocess.run(
            [OUTLAST, "cancel", *runs], cwd=self.project, env=self.environment, capture_output=True, check=True
        )

    def clean(self) -> None:
        self.server.terminate()
        self.server.wait(20)
        super().clean()


@contextmanager
def emulated() -> Iterator[Emulated]:
    made = Emulated(tempfile.mkdtemp(prefix="outlast-bench-"))
    try:
        yield made
    finally:
        made.clean()


class GcpJourney(Journey):
    """One `outlast run` through the emulated cloud."""

    options = (*_MACHINE,)

    def stamps(self) -> Stamps:
        assert isinstance(self.home, Emulated)
        printed, seen = self.line()
        found = {"process started": self.began}
        found["Submitted"] = self.event_at(ev.Submitted, 1)
        found["Placed"] = self.event_at(ev.Placed, 1)
        ours = self.home.requests(self.began)
        insert = next(one for one in ours if one.method == "POST" and one.path.endswith("/instances"))
        found["launch requested"] = insert.at
        found["boot script runs"] = self._serial(" outlast: boot ")
        found["agent up"] = next(one.at for one in ours if one.at > insert.at and one.path.endswith("/spec.json"))
        found["Started"] = self.event_at(ev.Started, 1)
        return {**found, "first output": printed, "received by the follower": seen}

    def _serial(self, text: str) -> float:
        machine = self.home.workspace.machine_name(self.run, 1)
        (path,) = [
            f"{self.home.cloud.root}/machines/{name}/serial.log"
            for name in os.listdir(f"{self.home.cloud.root}/machines")
            if name.startswith(machine)
        ]
        with open(path, encoding="utf-8", errors="replace") as file:
            line = next(line for line in file if text in line)
        return datetime.datetime.fromisoformat(line.split()[0]).timestamp()


def one_by_one(local: Home, cloud: Emulated, *, times: int, idle_s: float) -> tuple[list[Table], float]:
    """Alternate runs on the local and on the emulated cloud; the last run is also watched while it idles."""
    near, far = [], []
    traces: list[list[Request]] = []
    idle: list[Request] = []
    for number in range(times + 1):
        here = Journey(local)
        stamps_here = submitted(here)
        here.end()
        there = GcpJourney(cloud)
        stamps_there = there.stamps()
        trace = cloud.requests(there.began, stamps_there["received by the follower"])
        if number == times:
            idle = _idle(cloud, idle_s)
        there.end()
        until(lambda: not cloud.cloud.machines(), "machines are gone")
        if number:  # the first one stores the kit and probes the isolation modes of this computer
            near.append(stamps_here)
            far.append(stamps_there)
            traces.append(trace)
    tables = [_phases(near, far, traces), _requests(traces[-1]), _idle_table(idle, idle_s)]
    return tables, statistics.median(_total(far))


def _total(journeys: Sequence[Stamps]) -> list[float]:
    return [stamps["received by the follower"] - stamps["process started"] for stamps in journeys]


def _phases(near: Sequence[Stamps], far: Sequence[Stamps], traces: Sequence[Sequence[Request]]) -> Table:
    local, all_s = statistics.median(_total(near)), _total(far)
    ratio = statistics.median(all_s) / local
    rows = [
        row("**in all, local cloud and folder**", _total(near), "s"),
        row(
            "**in all, emulated cloud and bucket**",
            all_s,
            "s",
            against=f"{ratio:.1f}x local, {statistics.median(len(trace) for trace in traces):.0f} requests",
            goal="<= 1.5 s",
            met=statistics.median(all_s) <= 1.5,
        ),
    ]
    for before, name in itertools.pairwise(far[0]):
        step = [1e3 * (stamps[name] - stamps[before]) for stamps in far]
        counts = [
            sum(stamps[before] <= one.at < stamps[name] for one in trace)
            for stamps, trace in zip(far, traces, strict=True)
        ]
        rows.append(row(f"... {name}", step, "ms", against=f"{statistics.median(counts):.0f} requests"))
    return Table(f"Submit to the first line of output, emulated Google Cloud ({len(far)} times)", rows)


def _requests(trace: Sequence[Request]) -> Table:
    kinds = collections.Counter(one.what for one in trace)
    spent = collections.Counter[str]()
    for one in trace:
        spent[one.what] += one.took_s
    rows: list[Row] = [
        once(kind, count, "requests", against=f"{1e3 * spent[kind]:.0f} ms in the emulator")
        for kind, count in sorted(kinds.items())
    ]
    return Table("Requests until the first line is shown (the last run)", rows)


def _idle(cloud: Emulated, idle_s: float) -> list[Request]:
    time.sleep(15.0)  # polling slows down when nothing changes
    began = time.time()
    time.sleep(idle_s)
    return cloud.requests(began, began + idle_s)


def _idle_table(idle: Sequence[Request], idle_s: float) -> Table:
    kinds = collections.Counter(one.what for one in idle)
    rows = [once(kind, 3600 * count / idle_s, "per hour") for kind, count in sorted(kinds.items())]
    rows.append(once("**in all**", 3600 * len(idle) / idle_s, "per hour"))
    return Table(f"Requests of one idle run that `outlast run` follows, for {idle_s:.0f} s", rows)


def many(cloud: Emulated, count: int, one_s: float) -> Table:
    """Submit many runs at once, each by its own process."""
    began = time.time()
    argv = [OUTLAST, "submit", "--name", "many", *_MACHINE, "--", *_COMMAND]
    processes = [cloud.start(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in range(count)]
    runs = [process.communicate(timeout=300)[0].decode().strip() for process in processes]
    submitted_s = time.time() - began
    firsts = _first_lines(cloud, runs, began)
    trace = cloud.requests(began, began + max(firsts))
    cloud.cancel(*runs)
    until(lambda: not cloud.cloud.machines(), "machines are gone", 180.0)
    return _many_table(f"{count} submits at once", began, submitted_s, firsts, trace, one_s)


def group(cloud: Emulated, count: int, one_s: float) -> Table:
    path = os.path.join(cloud.project, "outlast.toml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(_GROUP.format(type=_TYPE, zone=_ZONE, image=_IMAGE, count=count))
    began = time.time()
    done = subprocess.run(
        [OUTLAST, "submit", "--json"], cwd=cloud.project, env=cloud.environment, capture_output=True, check=True
    )
    submitted_s = time.time() - began
    found = json.loads(done.stdout)
    firsts = _first_lines(cloud, found["runs"], began)
    trace = cloud.requests(began, began + max(firsts))
    os.unlink(path)
    cloud.cancel(*found["runs"])
    until(lambda: not cloud.cloud.machines(), "machines are gone", 180.0)
    return _many_table(f"A group of {count}", began, submitted_s, firsts, trace, one_s)


def _first_lines(cloud: Emulated, runs: Sequence[str], began: float) -> list[float]:
    """Return when each command printed its first line, in seconds after the submit."""
    readers = {run: LogReader(cloud.workspace.bucket, run, 1) for run in runs}
    firsts: list[float] = []

    def advance() -> bool:
        for run, reader in list(readers.items()):
            lines = [line for body in reader.read() for line in body.splitlines()]
            for line in [line for line in lines if not line.startswith(b"outlast: ")][:1]:
                firsts.append(float(line) - began)
                del readers[run]
        time.sleep(1.0)  # the benchmark's own polls must not load the emulator
        return not readers

    until(advance, f"first lines of {list(readers)}", 300.0)
    return sorted(firsts)


def _many_table(
    title: str, began: float, submitted_s: float, firsts: list[float], trace: Sequence[Request], one_s: float
) -> Table:
    def ratio(seconds: float) -> str:
        return f"{seconds / one_s:.1f}x one"

    last = firsts[-1]
    busy_s = sum(one.took_s for one in trace)
    launches = [one.at - began for one in trace if one.method == "POST" and one.path.endswith("/instances")]
    return Table(
        title,
        [
            once("submitted", submitted_s, "s", against=ratio(submitted_s)),
            once("the first launch is requested", launches[0], "s", against=ratio(launches[0])),
            once("the last launch is requested", launches[-1], "s", against=ratio(launches[-1])),
            once("the first command prints", firsts[0], "s", against=ratio(firsts[0])),
            once("the median command prints", statistics.median(firsts), "s", against=ratio(statistics.median(firsts))),
            once("the last command prints", last, "s", against=ratio(last), goal="<= 3x one", met=last <= 3 * one_s),
            once("requests", len(trace), "requests", against=f"{busy_s:.1f} s in the emulator"),
        ],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", default="", help=argparse.SUPPRESS)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--idle", type=float, default=60.0)
    parser.add_argument("--many", type=int, default=20)
    parser.add_argument("--trace", action="store_true", help="print the requests of the last run")
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve)
    local = Home(tempfile.mkdtemp(prefix="outlast-bench-"))
    try:
        with emulated() as cloud:
            tables, one_s = one_by_one(local, cloud, times=options.times, idle_s=options.idle)
            print_tables(*tables)
            parts: list[Callable[[Emulated, int, float], Table]] = [many, group] if options.many else []
            for part in parts:
                print_tables(part(cloud, options.many, one_s))
    finally:
        local.clean()
    return 0


if __name__ == "__main__":
    sys.exit(main())
