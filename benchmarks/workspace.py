"""Short commands with a remote bucket, and in a workspace with many ended runs.

    python benchmarks/workspace.py [--json] [--quick] [--source FOLDER]

`far`: 20 live runs of 60 events each in a bucket with 20 ms latency per call. `bucket` and `folder`: 50,000 ended runs
compared with 100, in such a bucket and in a folder. Each command is a separate process. `--source`
measures the code of another checkout (its `src` folder) with the same objects, for a comparison with an earlier state.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import msgspec
from ledger import story
from measure import OUTLAST, Home, Table, home, interleaved, once, print_tables, row
from slowstore import BUCKET, SlowStore, slow_store

from outlast.code.record import CodeRecord
from outlast.runs import ended
from outlast.runs import events as ev
from outlast.runs.ended import EndedRun, EndedRuns, record_of
from outlast.runs.state import fold
from outlast.runs.story import event_key
from outlast.spec.parse import parse
from outlast.workspace import Heartbeat, RunRequest, Workspace, open_workspace

LATENCY_S, LIVE, EVENTS = 0.02, 20, 60
FEW, MANY = 100, 50_000
_URL = f"s3://{BUCKET}/workspace"


def live_run(workspace: Workspace, number: int) -> None:
    """Write the objects of a live run with many saved checkpoints."""
    run, pen = f"live-{number}", workspace.story(f"live-{number}")
    begin = time.time() - 3600
    events = story(run, begin)[:3]
    events += [ev.Saved(attempt=1, checkpoint=f"0001-{n:05d}", step=n, at=begin + n) for n in range(4, EVENTS + 1)]
    workspace.write_request(RunRequest(run=run, spec=parse({"name": "live", "command": "train"}), code=CodeRecord()))
    for at, event in enumerate(events, 1):
        pen.append_or_raise(event, nonce=f"{at:016x}")
    workspace.write_heartbeat(run, Heartbeat(attempt=1, step=EVENTS, length=EVENTS))


def past(count: int) -> Iterator[tuple[str, bytes]]:
    """Return the objects of ended runs: requests, stories, and the pages of the index."""
    now, spec = time.time(), parse({"name": "run", "command": "train"})
    records: list[EndedRun] = []
    for number in range(count, 0, -1):
        run = f"run-{number}"
        events = story(run, now - 86400.0 * 300 * (count - number + 1) / count)
        yield f"runs/{run}/spec.json", msgspec.json.encode(RunRequest(run=run, spec=spec, code=CodeRecord()))
        for at, event in enumerate(events, 1):
            yield event_key(run, at), ev.encode(event)
        records.append(record_of(run, fold(events)))
    memory = open_workspace("memory://")
    index = EndedRuns(memory)
    for begin in range(0, len(records), ended.PAGE):
        index.write_page(records[begin : begin + ended.PAGE])
    for entry in memory.bucket.list("ended/pages/"):
        yield entry.key, memory.bucket.get(entry.key)
    yield "ended/complete", b""


def fill_folder(bench: Home, count: int) -> None:
    root = Path(bench.environment["OUTLAST_WORKSPACE"])
    for key, body in past(count):
        path = root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)


def in_bucket(bench: Home, store: SlowStore) -> None:
    bench.environment |= {**store.environment, "OUTLAST_WORKSPACE": _URL}
    os.environ |= store.environment
    bench.workspace = open_workspace(_URL)


def far(times: int, source: str) -> tuple[Table, dict[str, Any]]:
    with home() as bench, slow_store() as store:
        use(bench, source)
        in_bucket(bench, store)
        for number in range(1, LIVE + 1):
            live_run(bench.workspace, number)
        store.latency_s = LATENCY_S
        found = interleaved({"outlast ps": lambda: bench.time_s([OUTLAST, "ps"])}, times=times)
        before = store.calls
        bench.time_s([OUTLAST, "ps"])
        calls = store.calls - before
    took = statistics.median(found["outlast ps"])
    rows = [
        row("outlast ps", found["outlast ps"], "s", goal="<= 1.5 s", met=took <= 1.5),
        once("... its calls", calls, "calls", against=f"{calls / LIVE:.1f} a run"),
    ]
    return Table(f"{LIVE} live runs of {EVENTS} events, {1000 * LATENCY_S:.0f} ms a call", rows), {
        **found,
        "calls": calls,
    }


_COMMANDS = {
    "outlast ps": (["ps"], 2.0),
    "outlast show RUN": (["show", "run-7"], 2.0),
    "outlast show last": (["show", "last"], 2.0),
    "outlast submit": (["submit", "--name", "run", "--", "python", "-c", "pass"], 2.0),
    "outlast ps --all --limit 50": (["ps", "--all", "--limit", "50"], 3.0),
}


def long_past(
    where: str, *, many: int, times: int, source: str, commands: Collection[str]
) -> tuple[Table, dict[str, Any]]:
    """Measure each command with few and with many ended runs, in turns."""
    few, wanted = FEW, {name: one for name, one in _COMMANDS.items() if not commands or name in commands}
    with home() as small, home() as large, slow_store() as one, slow_store() as other:
        for bench, store, count in ((small, one, few), (large, other, many)):
            use(bench, source)
            if where == "folder":
                fill_folder(bench, count)
                continue
            store.fill({f"workspace/{key}": body for key, body in past(count)})
            in_bucket(bench, store)
            store.latency_s = LATENCY_S
        cases = {}
        for name, (argv, _) in wanted.items():
            if source and "--limit" in argv:
                argv = argv[:-2]  # older versions have no --limit
            cases |= {f"{name}, {few}": lambda w=argv: small.time_s([OUTLAST, *w])}
            cases |= {f"{name}, {many}": lambda w=argv: large.time_s([OUTLAST, *w])}
        found = interleaved(cases, times=times)
    rows = []
    for name, (_, goal) in wanted.items():
        base = statistics.median(found[f"{name}, {few}"])
        ratio = statistics.median(found[f"{name}, {many}"]) / base
        against = f"{ratio:.2f}x that with {few:,} ({1000 * base:.0f} ms)"
        samples = [1000 * s for s in found[f"{name}, {many}"]]
        rows.append(row(name, samples, "ms", against=against, goal=f"<= {goal:.0f}x", met=ratio <= goal))
    return Table(f"{many:,} ended runs in a {where}", rows), dict(found)


def use(bench: Home, source: str) -> None:
    if source:
        bench.environment["PYTHONPATH"] = os.path.abspath(source)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="2,000 ended runs")
    parser.add_argument("--source", default="", metavar="FOLDER", help="the `src` folder of another checkout")
    parser.add_argument("--only", choices=("far", "bucket", "folder"), action="append")
    parser.add_argument("--command", choices=_COMMANDS, action="append", help="only this one over ended runs")
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    wanted = options.only or ["far", "bucket", "folder"]
    many = 2000 if options.quick else MANY
    parts = [far(options.times, options.source)] if "far" in wanted else []
    for where in ("bucket", "folder"):
        if where in wanted:
            found = long_past(
                where, many=many, times=options.times, source=options.source, commands=options.command or ()
            )
            parts.append(found)
    if options.json:
        print(json.dumps({table.title: found for table, found in parts}))
    else:
        print_tables(*(table for table, _ in parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
