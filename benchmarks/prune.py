"""`prune` of 1,000 runs on a bucket with 20 ms latency, and the same keys deleted by obstore alone.

    python benchmarks/prune.py [--json] [--runs 1000]

Each run has the objects of a preempted training: eleven events, logs, metrics, two checkpoints and their parts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time

import obstore
from ledger import story
from measure import Table, once, print_tables, row
from obstore.store import from_url
from slowstore import BUCKET, SlowStore, slow_store

from outlast.retention.prune import prune
from outlast.runs import events as ev
from outlast.runs.ended import PAGE, EndedRun, EndedRuns, record_of
from outlast.runs.state import fold
from outlast.runs.story import event_key
from outlast.spec.spec import RetentionSpec
from outlast.workspace import Workspace, open_workspace

_LATENCY_S, _TIMES = 0.02, 3
_OLD_S = 30 * 86400.0


def objects_of(run: str, begin: float) -> dict[str, bytes]:
    found = {event_key(run, n): ev.encode(event) for n, event in enumerate(story(run, begin), 1)}
    found |= {f"runs/{run}/{name}": b"{}" for name in ("spec.json", "snapshot.json", "outputs/2/model.pt")}
    for attempt in (1, 2):
        found |= {f"runs/{run}/logs/{attempt}/{n:08d}.log": b"x" * 500 for n in range(4)}
        found |= {f"runs/{run}/metrics/{attempt}/00000001.jsonl": b"x" * 500}
        found |= {f"runs/{run}/parts/{attempt}/{n}": b"x" * 4000 for n in range(6)}
        found |= {f"runs/{run}/checkpoints/000{attempt}-00001/manifest.json": b"{}"}
    return found


def fill(store: SlowStore, workspace: Workspace, runs: int, prefix: str) -> list[str]:
    """Store the runs as of two months ago, and their index; return the keys of the runs."""
    EndedRuns(workspace).rebuild()
    old = time.time() - 2 * _OLD_S
    objects: dict[str, bytes] = {}
    records: list[EndedRun] = []
    for number in range(1, runs + 1):
        objects |= objects_of(f"run-{number}", old)
        records.append(record_of(f"run-{number}", fold(story(f"run-{number}", old))))
    store.fill({prefix + key: body for key, body in objects.items()})
    store.objects.update({prefix + key: (body, old) for key, body in objects.items()})
    for begin in range(0, runs, PAGE):
        EndedRuns(workspace).write_page(records[begin : begin + PAGE])
    return list(objects)


def measure(runs: int) -> tuple[Table, dict[str, list[float]]]:
    pruned: list[float] = []
    alone: list[float] = []
    keys: list[str] = []
    with slow_store() as store:
        os.environ.update(store.environment)
        for number in range(_TIMES):
            for how in ("prune", "obstore"):
                url = f"s3://{BUCKET}/{how}{number}"
                workspace = open_workspace(url)
                store.latency_s = 0.0
                prefix = f"{how}{number}/"
                keys = fill(store, workspace, runs, prefix)
                store.latency_s = _LATENCY_S
                began = time.perf_counter()
                if how == "prune":
                    assert len(prune(workspace, RetentionSpec(older_than_s=_OLD_S)).runs) == runs
                    pruned.append(time.perf_counter() - began)
                else:
                    obstore.delete(from_url(url, client_options={"allow_http": True}), keys)
                    alone.append(time.perf_counter() - began)
                left = [key for key in store.objects if key.startswith(f"{prefix}runs/")]
                assert not left, left[:3]
    ratio = statistics.median(pruned) / statistics.median(alone)
    rows = [
        row("`outlast prune`", pruned, "s", against=f"{ratio:.2f}x obstore", goal="<= 3x", met=ratio <= 3),
        row("obstore's delete of the same keys", alone, "s"),
        once("objects", float(len(keys)), "deleted"),
    ]
    return Table(title=f"Pruning {runs:,} runs, 20 ms latency ({_TIMES} times each)", rows=rows), {
        "prune_s": pruned,
        "obstore_s": alone,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    table, found = measure(options.runs)
    if options.json:
        print(json.dumps(found))
    else:
        print_tables(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
