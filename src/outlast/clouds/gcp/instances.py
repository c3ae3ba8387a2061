"""The instances of a project: where one is, what they are now, and changes to them. Knows no offer and no image."""

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


class Instances:
    """Names are one project's; Google knows them only within a zone, so zones are remembered."""

    def __init__(self, client: GcpClient, price: Price) -> None:
        self._client = client
        self._price = price
        self._lock = threading.Lock()
        self._zones: dict[str, str] = {}

    # Looking

    def every(self, labels: Mapping[str, str] | None = None) -> list[Machine]:
        """All instances that carry these labels, in one listing. Raises CloudUnreachable when a zone is silent."""
        query = {"filter": label.filter_of(labels)} if labels else {}
        found = list(self._listed(query))
        ended = [doc for doc, _ in found if machines.is_spot(doc) and doc.get("status") == "TERMINATED"]
        preempted = self._preempted("aggregated", ended) if ended else set()
        return [self._machine(doc, at, preempted) for doc, at in found]

    def find(self, name: str) -> tuple[Doc, float]:
        """The instance as it is now, and when that was, by the cloud's clock. Raises NotFound, BadRequest."""
        check_name(name)
        if (zone := self._zones.get(name)) is not None:
            try:
                answer = self.get(zone, name)
                return answer.doc, answer.at
            except NotFound:
                self.forget(name)
        for doc, at in self.namesakes(name):
            self.remember(name, last(doc["zone"]))
            return doc, at
        raise NotFound(f"Google Cloud has no machine `{name}` in the project `{self._client.project}`")

    def namesakes(self, name: str) -> list[tuple[Doc, float]]:
        """All of that name: to Google they are different machines, one a zone. Ours first, then the oldest."""
        found = [(doc, at) for doc, at in self._listed({"filter": f'(name="{name}")'}) if doc["name"] == name]
        return sorted(found, key=lambda one: (LABEL_WORKSPACE not in one[0].get("labels", {}), *machines.birth(one[0])))

    def get(self, zone: str, name: str, fields: str = machines.FIELDS) -> ApiAnswer:
        answer = self._client.compute("GET", f"zones/{zone}/instances/{name}", query={"fields": fields})
        self.remember(name, zone)
        return answer

    def machine(self, name: str) -> Machine:
        return self.described(*self.find(name))

    def described(self, doc: Doc, at: float) -> Machine:
        ended = machines.is_spot(doc) and doc.get("status") == "TERMINATED"
        place = f"zones/{last(doc['zone'])}"
        return self._machine(doc, at, self._preempted(place, [doc]) if ended else set())

    def place(self, doc: Doc) -> str:
        """The path of an instance below its project."""
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
                    # Half a list would look as if the machines of that zone were gone.
                    raise CloudUnreachable(f"{scope} does not tell its machines: {code}")
                for doc in inner.get("instances", []):
                    self.remember(str(doc["name"]), last(doc["zone"]))
                    yield doc, page.at

    def _machine(self, doc: Doc, at: float, preempted: set[str]) -> Machine:
        why = "preempted" if str(doc["id"]) in preempted else ""
        return machines.read(doc, seen_at=at, price_usd_per_hour=self._price(doc), why=why)

    def _preempted(self, place: str, docs: list[Doc]) -> set[str]:
        """Which of these instances were stopped by a preemption, and not by somebody: the log of operations tells."""
        mask = "targetId,insertTime"
        mask = f"items/*/operations({mask}),nextPageToken" if place == "aggregated" else f"items({mask}),nextPageToken"
        query = {"filter": f'(operationType="{_PREEMPTED}")', "fields": mask}
        path = "aggregated/operations" if place == "aggregated" else f"{place}/operations"
        started = {str(doc["id"]): machines.when(doc.get("lastStartTimestamp")) for doc in docs}
        found = set()
        for page in self._client.pages(path, query=query):
            items = page.doc.get("items", [])
            lists = [inner.get("operations", []) for inner in items.values()] if isinstance(items, dict) else [items]
            for operation in (one for inner in lists for one in inner):
                target = str(operation.get("targetId"))
                # One of an earlier boot is over and done with.
                if target in started and machines.when(operation.get("insertTime")) >= started[target]:
                    found.add(target)
        return found

    # Changing

    def power(self, verb: str, doc: Doc, *, query: Mapping[str, object] | None = None) -> None:
        """start, stop, simulateMaintenanceEvent; by the boot that it is about, so that a repetition is one."""
        boot = f"{doc['id']}/{doc.get('lastStartTimestamp', '')}/{doc.get('lastStopTimestamp', '')}"
        self._client.change("POST", f"{self.place(doc)}/{verb}", key=f"{verb}/{boot}", query=query)

    def delete(self, doc: Doc, *, query: Mapping[str, object] | None = None) -> None:
        with contextlib.suppress(NotFound):
            self._client.change("DELETE", self.place(doc), key=f"delete/{doc['id']}", query=query)
        self.forget(str(doc["name"]))

    def set_metadata(self, name: str, change: Callable[[dict[str, str]], Mapping[str, str]]) -> None:
        """Change the metadata; from the beginning when somebody else changed it meanwhile."""
        doc, _ = self.find(name)
        for _ in range(_TRIES):
            full = self.get(last(doc["zone"]), name, "metadata").doc
            before = machines.read_items(full)
            after = {**before, **change(before)}
            if after == before:
                return
            mark = str(full.get("metadata", {}).get("fingerprint", ""))
            body = {"fingerprint": mark, "items": machines.items_of(after)}
            try:
                self._client.change("POST", f"{self.place(doc)}/setMetadata", body=body)
                return
            except Stale:
                continue
        raise NotReady(f"the metadata of `{name}` is being changed by somebody else, again and again")

    def metadata(self, name: str) -> dict[str, str]:
        doc, _ = self.find(name)
        return machines.read_items(self.get(last(doc["zone"]), name, "metadata").doc)

    def keep_account(self, doc: Doc, ran_s: float) -> None:
        """Write down how long it was billed before it starts again; losing this loses nothing but cents in a table."""
        own = {**doc.get("labels", {}), machines.LABEL_RAN: str(round(ran_s))}
        body = {"labels": own, "labelFingerprint": doc.get("labelFingerprint", "")}
        with contextlib.suppress(Stale):
            self._client.change("POST", f"{self.place(doc)}/setLabels", body=body)
