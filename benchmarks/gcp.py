"""Google Cloud: time and requests of a launch, of observing 1,000 machines and of a deletion, on our own server.

    python benchmarks/gcp.py

Launch and deletion are of real local machines. The list of 1,000 is put into the server's books without machines: what
is measured is what our side asks for, gets and reads.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

from outlast.clouds.cloud import LABEL_WORKSPACE, Boot, Needs
from outlast.clouds.gcp.cloud import GcpCloud
from outlast.clouds.gcp.prices import PriceBook
from outlast.clouds.local.cloud import LocalCloud
from outlast.clouds.local.probe import why_not
from outlast.clouds.local.serve.compute.links import Ref
from outlast.clouds.local.serve.endpoint import Endpoint
from outlast.clouds.local.serve.environment import PROJECT, variables, write_files

MACHINES = 1000
ROUNDS = 7
LABELS = {LABEL_WORKSPACE: "bench"}


def measured(cloud: GcpCloud, what: str, work: Callable[[], object]) -> None:
    before, began = cloud.client.sent, time.perf_counter()
    work()
    print(f"{what:<44} {(time.perf_counter() - began) * 1000:8.0f} ms  {cloud.client.sent - before:3} requests")


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
            _measure(cloud, endpoint)
        finally:
            for machine in local.machines():
                local.delete(machine.name)
            endpoint.stop()
    return 0


def _measure(cloud: GcpCloud, endpoint: Endpoint) -> None:
    needs = Needs(type="e2-standard-2", zones=("us-central1-a",))
    measured(cloud, "offers, the first time", lambda: cloud.offers(needs))
    measured(cloud, "offers, again", lambda: cloud.offers(needs))
    offer = cloud.offers(needs)[0]
    for number in range(3):
        measured(
            cloud,
            f"launch box-{number}, until it runs",
            lambda n=number: cloud.launch(offer, f"box-{n}", boot=Boot(script="sleep 1000"), labels=LABELS),
        )
    measured(cloud, "launch box-0 again: it is found", lambda: cloud.launch(offer, "box-0", boot=Boot(), labels=LABELS))
    measured(cloud, "observe 3 machines", lambda: cloud.machines(LABELS))
    for number in range(3):
        measured(cloud, f"delete box-{number}, until it is gone", lambda n=number: cloud.delete(f"box-{n}"))
    _many(cloud, endpoint)


def _many(cloud: GcpCloud, endpoint: Endpoint) -> None:
    """A thousand instances in the books, as if they were being made."""
    cloud.launch(
        cloud.offers(Needs(type="e2-standard-2", zones=("us-central1-a",)))[0], "model", boot=Boot(), labels=LABELS
    )
    store = endpoint._compute.desk.store
    model = store.get(Ref(PROJECT, "zones/us-central1-a", "instances", "model"))
    assert model is not None
    for number in range(MACHINES - 1):
        name = f"many-{number:04}"
        ref = Ref(PROJECT, "zones/us-central1-a", "instances", name)
        doc = {**model, "name": name, "id": str(10**15 + number), "selfLink": ref.link, "_creating": True}
        store.put(ref, doc)
    times = []
    for _ in range(ROUNDS):
        before, began = cloud.client.sent, time.perf_counter()
        found = cloud.machines(LABELS)
        times.append(time.perf_counter() - began)
        assert len(found) == MACHINES
    requests, median_ms = cloud.client.sent - before, statistics.median(times) * 1000
    print(f"{'observe 1,000 machines (median)':<44} {median_ms:8.0f} ms  {requests:3} requests")


if __name__ == "__main__":
    sys.exit(main())
