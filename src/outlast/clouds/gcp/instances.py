"""The instances of a project: finding, listing and changing them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from outlast.clouds.cloud import LABEL_WORKSPACE, Machine, ZonesUnreachable
from outlast.clouds.gcp import labels as label
from outlast.clouds.gcp import machines
from outlast.clouds.gcp.client import ApiAnswer, GcpClient, check_name, last
from outlast.clouds.gcp.errors import Doc, NotReady, Stale
from outlast.errors import CloudUnreachable, Denied, NotFound

_PREEMPTED = "compute.instances.preempted"
_TRIES = 8
# A list may lack a new instance for some seconds.
_LISTED_S = 30.0
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
        """Return all instances with these labels, in one listing. Raises ZonesUnreachable if it lacks a zone."""
        found, silent = self._listed({"filter": label.filter_of(labels)} if labels else {})
        ended = [doc for doc, _ in found if machines.is_spot(doc) and doc.get("status") == "TERMINATED"]
        preempted = self._preempted("aggregated", ended) if ended else set()
        known = [self._machine(doc, at, preempted) for doc, at in found]
        if silent:
            raise ZonesUnreachable(_silence(silent), zones=tuple(silent), machines=known)
        return known

    def find(self, name: str, *, zone: str = "") -> tuple[Doc, float]:
        """Return the instance and the time of the answer by the cloud's clock.

        Raises NotFound, BadRequest, and CloudUnreachable if a zone is silent in which it may be: any, or `zone`.
        """
        check_name(name)
        if (known := self._zones.get(name)) is not None:
            try:
                answer = self.get(known, name)
                return answer.doc, answer.at
            except NotFound:
                self.forget(name)
        for doc, at in self.list_named(name, zone=zone):
            self.remember(name, last(doc["zone"]))
            return doc, at
        raise NotFound(f"no machine `{name}` in Google Cloud project `{self._client.project}`")

    def list_named(self, name: str, *, zone: str = "") -> list[tuple[Doc, float]]:
        """Return all instances of that name, at most one per zone: ours first, then the oldest.

        Raises CloudUnreachable if there is none and a zone is silent in which it may be: any, or `zone`.
        """
        listed, silent = self._listed({"filter": f'(name="{name}")'})
        found = [(doc, at) for doc, at in listed if doc["name"] == name]
        if not found and (zone in silent if zone else silent):
            raise CloudUnreachable(_silence(silent))
        return sorted(
            found, key=lambda one: (LABEL_WORKSPACE not in one[0].get("labels", {}), *machines.age_key(one[0]))
        )

    def await_listed(self, doc: Doc) -> list[tuple[Doc, float]]:
        """Return all instances of a new instance's name, once a list contains it.

        Lists lag behind. Until they show the machine, another process would not find it.
        """
        give_up_at, pause_s = time.monotonic() + _LISTED_S, 0.05
        while True:
            found = self.list_named(str(doc["name"]), zone=last(doc["zone"]))
            if any(one["id"] == doc["id"] for one, _ in found) or time.monotonic() > give_up_at:
                return found
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 2.0)

    def get(self, zone: str, name: str, fields: str = machines.FIELDS) -> ApiAnswer:
        answer = self._client.compute("GET", f"zones/{zone}/instances/{name}", query={"fields": fields})
        self.remember(name, zone)
        return answer

    def missing(self, names: Sequence[str], zone: str) -> list[str]:
        """Return the names of which the zone has no machine. Lists lag behind, so each is asked for."""
        missing = []
        for name in names:
            try:
                self.get(zone, name)
            except NotFound:
                missing.append(name)
        return missing

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

    def _listed(self, query: Mapping[str, object]) -> tuple[list[tuple[Doc, float]], dict[str, str]]:
        """Return the instances, and the zones that are missing: their machines must not look deleted."""
        mask = f"items/*(warning/code,instances({machines.FIELDS})),nextPageToken,unreachables"
        found: list[tuple[Doc, float]] = []
        silent: dict[str, str] = {}
        # Without partial success, one silent zone fails the whole request.
        options = {**query, "fields": mask, "returnPartialSuccess": True}
        for page in self._client.pages("aggregated/instances", query=options):
            silent |= {last(scope): "UNREACHABLE" for scope in page.doc.get("unreachables", [])}
            for scope, inner in page.doc.get("items", {}).items():
                code = inner.get("warning", {}).get("code", "NO_RESULTS_ON_PAGE")
                if code != "NO_RESULTS_ON_PAGE":
                    silent[last(scope)] = str(code)
                for doc in inner.get("instances", []):
                    self.remember(str(doc["name"]), last(doc["zone"]))
                    found.append((doc, page.at))
        return found, silent

    def _machine(self, doc: Doc, at: float, preempted: set[str]) -> Machine:
        why = "preempted" if str(doc["id"]) in preempted else ""
        return machines.read(doc, seen_at=at, price_usd_per_hour=self._price(doc), why=why)

    def _preempted(self, scope: str, docs: list[Doc]) -> set[str]:
        """Return the ids of the instances that a preemption stopped, from the log of operations.

        Empty for an account that may not read it: the reason is not known then.
        """
        with contextlib.suppress(Denied):
            return self._read_preempted(scope, docs)
        return set()

    def _read_preempted(self, scope: str, docs: list[Doc]) -> set[str]:
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


def _silence(zones: Mapping[str, str]) -> str:
    listed = ", ".join(f"{zone} ({code})" for zone, code in sorted(zones.items()))
    return f"Google did not list the machines of {listed}"
