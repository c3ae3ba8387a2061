"""Shared state of the Compute API, and one parsed request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from outlast.clouds.local.cloud import LocalCloud
from outlast_gcp_emulator.compute.operations import Operations, Work
from outlast_gcp_emulator.compute.refs import Doc, Ref, resource_not_found
from outlast_gcp_emulator.compute.store import ResourceStore
from outlast_gcp_emulator.conditions import CloudConditions, Surroundings


@dataclass(kw_only=True, slots=True)
class Call:
    """One parsed request."""

    project: str
    # Empty for requests outside of `global`, a zone and a region.
    scope: str
    name: str
    query: Mapping[str, str]
    body: Doc
    # Address and API version that the client used, as in `http://127.0.0.1:9480/compute/v1`.
    base: str = ""

    def flag(self, name: str) -> bool:
        return self.query.get(name, "").lower() == "true"


class GuestAccess(NamedTuple):
    """A machine's token, and the environment variables that point its programs at this endpoint."""

    token: str
    environment: dict[str, str]


@dataclass(kw_only=True, slots=True)
class Context:
    """The local cloud, the stored resources and the operations, shared by all resource classes."""

    cloud: LocalCloud
    store: ResourceStore
    operations: Operations
    surroundings: Surroundings = field(default_factory=lambda: Surroundings(CloudConditions()))
    # Returns the access of a machine to this endpoint, by machine name.
    guest_access: Callable[[str], GuestAccess] = lambda machine: GuestAccess(token="", environment={})
    # The longest notice of a preemption that is granted; a request for more is stored with this one.
    notice_s_max: int = 120
    # Zones that aggregated lists cannot reach.
    silent_zones: set[str] = field(default_factory=set)
    # The port of this endpoint on loopback.
    port: int = 0
    # Held while a free name is chosen and taken, so that no two requests take the same one.
    names: threading.RLock = field(default_factory=threading.RLock)

    def find(self, ref: Ref) -> Doc:
        if (doc := self.store.get(ref)) is None:
            raise resource_not_found(ref)
        return doc

    def begin(self, call: Call, target: Ref, verb: str, work: Work = lambda: None) -> Doc:
        """Start an operation on a resource and return the operation."""
        target_id = str((self.store.get(target) or {}).get("id", ""))
        return self.operations.begin(
            target, verb, work, target_id=target_id, request_id=call.query.get("requestId", "")
        )

    def change(self, ref: Ref, **changes: Any) -> Doc:
        """Update fields of a resource; None removes a field."""
        with self.store.lock:
            doc = {**self.find(ref), **changes}
            return self.store.put(ref, {name: value for name, value in doc.items() if value is not None})
