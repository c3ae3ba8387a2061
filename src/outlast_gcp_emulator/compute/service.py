"""The Compute API as one thing: made, added to a router, started, stopped."""

from __future__ import annotations

from collections.abc import Callable

from outlast.clouds.local.cloud import LocalCloud
from outlast_gcp_emulator.compute import images, instance_backend, machineimages
from outlast_gcp_emulator.compute.context import Context, GuestAccess
from outlast_gcp_emulator.compute.operations import Operations
from outlast_gcp_emulator.compute.reconciler import Reconciler
from outlast_gcp_emulator.compute.routes import add_routes
from outlast_gcp_emulator.compute.store import ResourceStore
from outlast_gcp_emulator.router import Router


class Compute:
    """State is kept in the folder; one server at a time may use it."""

    def __init__(self, cloud: LocalCloud, folder: str) -> None:
        store = ResourceStore(folder)
        self.context = Context(cloud=cloud, store=store, operations=Operations(store))
        self._watch = Reconciler(self.context)

    def add_to(self, router: Router) -> None:
        add_routes(router, self.context)

    def start(self, guest_access: Callable[[str], GuestAccess], *, port: int) -> None:
        """`guest_access` is how programs on a machine find this endpoint, at this port of loopback."""
        self.context.guest_access, self.context.port = guest_access, port
        instance_backend.tidy_up(self.context)
        images.tidy_up(self.context)
        machineimages.tidy_up(self.context)
        self._watch.start()

    def stop(self) -> None:
        self._watch.stop()
