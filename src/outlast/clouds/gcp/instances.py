"""The instances of a project: finding, listing and changing them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping

from outlast.clouds.cloud import LABEL_WORKSPACE, Machine
from outlast.clouds.gcp import labels as label
from outlast.clouds.gcp import machines
from outlast.clouds.gcp.client import ApiAnswer, GcpClient, check_name, last
from outlast.clouds.gcp.errors import Doc, NotReady, Stale
from outlast.errors import CloudUnreachable, NotFound

_PREEMPTED = "compute.instances.preempted"
_TRIES = 8
Price = Callable[[Doc], float]


class GcpInstances:
    """The instances of one project, by name. Google needs the zone as well, so zones are cached."""

    def __init__(self, client: GcpClient, price: Price) -> None:
        self._client = client
        self._price = price
        self._lock = threading.Lock()
        self._zones: dict[str, str] = {}

    # Reading

    def list_all(self, labels: Mapping[str, str] | None = None) -> list[Machine]:
        """Return all instances with these labels, in one listing. Raises CloudUnreachable if it lacks a zone."""
        query = {"filter": label.filter_of(labels)} if labels else {}
        found = list(self._listed(query))
        ended = [doc for doc, _ in found if machines.is_spot(doc) and doc.get("status") == "TERMINATED"]
        preempted = self._preempted("aggregated", ended) if ended else set()
        return [self._machine(doc, at, preempted) for doc, at in found]

    def find(self, name: str) -> tuple[Doc, float]:
        """Return the instance and the time of the answer by the cloud's clock. Raises NotFound, BadRequest."""
        check_name(name)
        if (zone := self._zones.get(name)) is not None:
            try:
                answer = self.get(zone, name)
                return answer.doc, answer.at
            except NotFound:
                self.forget(name)
        for doc, at in self.list_named(name):
            self.remember(name, last(doc["zone"]))
            return doc, at
        raise NotFound(f"no machine `{name}` in Google Cloud project `{self._client.project}`")

    def list_named(self, name: str) -> list[tuple[Doc, float]]:
        """Return all instances of that name, at most one per zone: ours first, then the oldest."""
        found = [(doc, at) for doc, at in self._listed({"filter": f'(name="{name}")'}) if doc["name"] == name]
        return sorted(
            found, key=lambda one: (LABEL_WORKSPACE not in one[0].get("labels", {}), *machines.age_key(one[0]))
        )

    def get(self, zone: str, name: str, fields: str = machines.FIELDS) -> ApiAnswer:
        answer = self._client.compute("GET", f"zones/{zone}/instances/{name}", query={"fields": fields})
        self.remember(name, zone)
        return answer

    def machine(self, name: str) -> Machine:
        return self.describe(*self.find(name))

    def describe(self, doc: Doc, at: float) -> Machine:
        ended = machines.is_spot(doc) and doc.get("status") == "TERMINATED"
        zone = f"zones/{last(doc['zone'])}"
        return self._machine(doc, at, self._preempted(zone, [doc]) if ended else set())

    def path_of(self, doc: Doc) -> str:
        """Return the path of an instance below its project."""
        return f"zones/{last(doc['zone'])}/instances/{doc['name']}"

    def remember(self, name: str, zone: str) -> None:
        with self._lock:
            self._zones[name] = zone

    def forget(self, name: str) -> None:
        with self._lock:
            self._zones.pop(name, None)

    def _listed(self, query: Mapping[str, object]) -> Iterator[tuple[Doc, float]]:
        mask = f"items/*(warning/code,instances({machines.FIELDS})),nextPageToken"
        for page in self._client.pages("aggregated/instances", query={**query, "fields": mask}):
            for scope, inner in page.doc.get("items", {}).items():
                code = inner.get("warning", {}).get("code", "NO_RESULTS_ON_PAGE")
                if code != "NO_RESULTS_ON_PAGE":
                    # In an incomplete list the machines of that zone would look deleted.
                    raise CloudUnreachable(f"Google did not list the machines of {scope}: {code}")
                for doc in inner.get("instances", []):
                    self.remember(str(doc["name"]), last(doc["zone"]))
                    yield doc, page.at

    def _machine(self, doc: Doc, at: float, preempted: set[str]) -> Machine:
        why = "preempted" if str(doc["id"]) in preempted else ""
        return machines.read(doc, seen_at=at, price_usd_per_hour=self._price(doc), why=why)

    def _preempted(self, scope: str, docs: list[Doc]) -> set[str]:
        """Return the ids of the instances that a preemption stopped, from the log of operations."""
        mask = "targetId,insertTime"
        mask = f"items/*/operations({mask}),nextPageToken" if scope == "aggregated" else f"items({mask}),nextPageToken"
        query = {"filter": f'(operationType="{_PREEMPTED}")', "fields": mask}
        path = f"{scope}/operations"
        started = {str(doc["id"]): machines.when(doc.get("lastStartTimestamp")) for doc in docs}
        found = set()
        for page in self._client.pages(path, query=query):
            items = page.doc.get("items", [])
            lists = [inner.get("operations", []) for inner in items.values()] if isinstance(items, dict) else [items]
            for operation in (one for inner in lists for one in inner):
                target = str(operation.get("targetId"))
                # Ignore preemptions of earlier boots.
                if target in started and machines.when(operation.get("insertTime")) >= started[target]:
                    found.add(target)
        return found

    # Changing

    def power(self, verb: str, doc: Doc, *, query: Mapping[str, object] | None = None) -> None:
        """Send start, stop or simulateMaintenanceEvent, with a key per boot, so that repeating it has no effect."""
        boot = f"{doc['id']}/{doc.get('lastStartTimestamp', '')}/{doc.get('lastStopTimestamp', '')}"
        self._client.change("POST", f"{self.path_of(doc)}/{verb}", key=f"{verb}/{boot}", query=query)

    def delete(self, doc: Doc, *, query: Mapping[str, object] | None = None) -> None:
        with contextlib.suppress(NotFound):
            self._client.change("DELETE", self.path_of(doc), key=f"delete/{doc['id']}", query=query)
        self.forget(str(doc["name"]))

    def set_metadata(self, name: str, change: Callable[[dict[str, str]], Mapping[str, str]]) -> None:
        """Change the metadata; start over if another client changed it meanwhile."""
        doc, _ = self.find(name)
        for _ in range(_TRIES):
            full = self.get(last(doc["zone"]), name, "metadata").doc
            before = machines.read_items(full)
            after = {**before, **change(before)}
            if after == before:
                return
            fingerprint = str(full.get("metadata", {}).get("fingerprint", ""))
            body = {"fingerprint": fingerprint, "items": machines.items_of(after)}
            try:
                self._client.change("POST", f"{self.path_of(doc)}/setMetadata", body=body)
                return
            except Stale:
                continue
        raise NotReady(f"could not change the metadata of `{name}`: other clients changed it {_TRIES} times meanwhile")

    def metadata(self, name: str) -> dict[str, str]:
        doc, _ = self.find(name)
        return machines.read_items(self.get(last(doc["zone"]), name, "metadata").doc)

    def record_run_time(self, doc: Doc, ran_s: float) -> None:
        """Record the billed time of earlier boots in a label. Best effort: it affects reported costs only."""
        own = {**doc.get("labels", {}), machines.LABEL_RAN: str(round(ran_s))}
        body = {"labels": own, "labelFingerprint": doc.get("labelFingerprint", "")}
        with contextlib.suppress(Stale):
            self._client.change("POST", f"{self.path_of(doc)}/setLabels", body=body)
