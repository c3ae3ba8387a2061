"""The Compute API as one thing: made, added to a router, started, stopped."""

from __future__ import annotations

from collections.abc import Mapping

from outlast.clouds.local.cloud import LocalCloud
from outlast.clouds.local.serve.compute import images, machineimages, machines
from outlast.clouds.local.serve.compute.desk import Desk
from outlast.clouds.local.serve.compute.operations import Operations
from outlast.clouds.local.serve.compute.routes import add_routes
from outlast.clouds.local.serve.compute.store import Store
from outlast.clouds.local.serve.compute.watch import Watch
from outlast.clouds.local.serve.router import Router


class Compute:
    """State is kept in the folder; one server at a time may use it."""

    def __init__(self, cloud: LocalCloud, folder: str) -> None:
        store = Store(folder)
        self.desk = Desk(cloud=cloud, store=store, operations=Operations(store))
        self._watch = Watch(self.desk)

    def add_to(self, router: Router) -> None:
        add_routes(router, self.desk)

    def start(self, environment: Mapping[str, str], *, port: int) -> None:
        """`environment` is how programs on the machines find this endpoint, at this port of loopback."""
        self.desk.environment, self.desk.port = dict(environment), port
        machines.tidy_up(self.desk)
        images.tidy_up(self.desk)
        machineimages.tidy_up(self.desk)
        self._watch.start()

    def stop(self) -> None:
        self._watch.stop()
