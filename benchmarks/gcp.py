"""Google Cloud: time and requests of a launch, of listing 1,000 machines and of a deletion, on our emulator.

    python benchmarks/gcp.py

Launch and deletion use real local machines. The 1,000 exist only in the emulator's records: the benchmark measures
our client.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from measure import Row, Table, print_tables, row

from outlast.clouds.cloud import LABEL_WORKSPACE, Boot, Requirements
from outlast.clouds.gcp.cloud import GcpCloud
from outlast.clouds.gcp.prices import PriceBook
from outlast.clouds.local.cloud import LocalCloud
from outlast.clouds.local.probe import why_not
from outlast_gcp_emulator.compute.refs import Ref
from outlast_gcp_emulator.endpoint import Endpoint
from outlast_gcp_emulator.environment import PROJECT, variables, write_files

MACHINES = 1000
ROUNDS = 7
_BOXES = ("box-0", "box-1", "box-2")
LABELS = {LABEL_WORKSPACE: "bench"}


def measured(cloud: GcpCloud, what: str, work: Callable[[], object], *, times: int = 1, most: int = 0) -> Row:
    """Repeat a case; `most` is the goal for its number of requests."""
    took, sent = [], 0
    for _ in range(times):
        before, began = cloud.client.sent, time.perf_counter()
        work()
        took.append((time.perf_counter() - began) * 1000)
        sent = cloud.client.sent - before
    goal = {"goal": f"<= {most} requests", "met": sent <= most} if most else {}
    return row(what, took, "ms", against=f"{sent} requests", **goal)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        mode = "plain" if why_not("pidns", root=folder) else "pidns"
        local = LocalCloud(f"{folder}/cloud", mode=mode)
        endpoint = Endpoint(f"{folder}/served", cloud=local)
        endpoint.start()
        write_files(endpoint.root, endpoint.url)
        os.environ.update(variables(endpoint.root, endpoint.url))
        cloud = GcpCloud(PROJECT, prices=PriceBook(f"{folder}/cache"))
        try:
            print_tables(_measure(cloud, endpoint))
        finally:
            for machine in local.machines():
                local.delete(machine.name)
            endpoint.stop()
    return 0


def _measure(cloud: GcpCloud, endpoint: Endpoint) -> Table:
    needs = Requirements(type="e2-standard-2", zones=("us-central1-a",))
    first = measured(cloud, "offers, the first time", lambda: cloud.offers(needs))
    again = measured(cloud, "offers, again", lambda: cloud.offers(needs), times=ROUNDS)
    offer = cloud.offers(needs)[0]
    names, gone = iter(_BOXES), iter(_BOXES)

    def launch(name: str) -> None:
        cloud.launch(offer, name, boot=Boot(script="sleep 1000"), labels=LABELS)

    rows = [
        first,
        again,
        measured(cloud, "launch, until it runs", lambda: launch(next(names)), times=3, most=5),
        measured(cloud, "launch again: it is found", lambda: launch(_BOXES[0])),
        measured(cloud, "observe 3 machines", lambda: cloud.machines(LABELS), times=ROUNDS, most=1),
        measured(cloud, "delete, until it is gone", lambda: cloud.delete(next(gone)), times=3),
    ]
    launch("model")
    _fill(endpoint)
    rows.append(measured(cloud, "observe 1,000 machines", lambda: _count(cloud), times=ROUNDS, most=2))
    return Table("Google Cloud, on our own server", rows)


def _count(cloud: GcpCloud) -> None:
    assert len(cloud.machines(LABELS)) == MACHINES


def _fill(endpoint: Endpoint) -> None:
    """Add 1,000 instances to the emulator's records, as if they were being created."""
    store = endpoint._compute.context.store
    model = store.get(Ref(PROJECT, "zones/us-central1-a", "instances", "model"))
    assert model is not None
    for number in range(MACHINES - 1):
        name = f"many-{number:04}"
        ref = Ref(PROJECT, "zones/us-central1-a", "instances", name)
        doc = {**model, "name": name, "id": str(10**15 + number), "selfLink": ref.link, "_creating": True}
        store.put(ref, doc)


if __name__ == "__main__":
    sys.exit(main())
