"""The Compute API as a whole: its resource classes, their routes, and the reconciler."""

from __future__ import annotations

from collections.abc import Callable

from outlast.clouds.local.cloud import LocalCloud
from outlast_gcp_emulator.compute.builtin_kinds import builtin_kinds
from outlast_gcp_emulator.compute.bulk import BulkInsert
from outlast_gcp_emulator.compute.context import Context, GuestAccess
from outlast_gcp_emulator.compute.disk_backing import DiskBacking
from outlast_gcp_emulator.compute.disks import Disks
from outlast_gcp_emulator.compute.dispatch import Dispatcher
from outlast_gcp_emulator.compute.groups import GroupManagers, InstanceGroups
from outlast_gcp_emulator.compute.images import Images
from outlast_gcp_emulator.compute.instance_backend import InstanceBackend
from outlast_gcp_emulator.compute.instances import Instances
from outlast_gcp_emulator.compute.machineimages import MachineImages
from outlast_gcp_emulator.compute.operations import Operations
from outlast_gcp_emulator.compute.oslogin_keys import OsLoginKeys
from outlast_gcp_emulator.compute.project import ProjectResource
from outlast_gcp_emulator.compute.reconciler import Reconciler
from outlast_gcp_emulator.compute.resource import OperationResource, Resource
from outlast_gcp_emulator.compute.snapshots import SavedDisks, Snapshots
from outlast_gcp_emulator.compute.store import ResourceStore
from outlast_gcp_emulator.compute.stored_kinds import stored_kinds
from outlast_gcp_emulator.conditions import Surroundings
from outlast_gcp_emulator.router import Router


class Compute:
    """Keeps its state in a folder, which only one server may use at a time."""

    def __init__(self, cloud: LocalCloud, folder: str, surroundings: Surroundings) -> None:
        store = ResourceStore(folder)
        operations = Operations(store)
        self.context = context = Context(cloud=cloud, store=store, operations=operations, surroundings=surroundings)
        self.dispatcher = Dispatcher(context)
        self._project = ProjectResource(context)
        self.oslogin_keys = OsLoginKeys(context, self._project)
        backing = DiskBacking(context)
        self._images = Images(context, backing)
        self._snapshots = Snapshots(context, backing)
        self._machine_images = MachineImages(context, SavedDisks(context, backing))
        self._disks = Disks(context, backing, self._images)
        self.backend = InstanceBackend(context, backing, self._disks, self._project, self.oslogin_keys)
        self._instances = Instances(context, backing, self._disks, self.backend, self._machine_images, self._project)
        self._managers = GroupManagers(context, self._instances, self.backend)
        self._reconciler = Reconciler(context, backing, self.backend, self._managers)

    def add_to(self, router: Router) -> None:
        context = self.context
        resources: tuple[Resource | BulkInsert, ...] = (
            *builtin_kinds(context),
            self._instances,
            BulkInsert(context, self._instances, self.backend),
            self._disks,
            self._images,
            self._snapshots,
            self._machine_images,
            self._managers,
            InstanceGroups(context, self._managers),
            OperationResource(context),
            *stored_kinds(context),
        )
        entries = [("GET", "", self._project.get), *(entry for resource in resources for entry in resource.routes())]
        self.dispatcher.add_routes(router, entries)

    def start(self, guest_access: Callable[[str], GuestAccess], *, port: int) -> None:
        """Recover from a killed server and start the reconciler. `port` is the endpoint's port on loopback."""
        self.context.guest_access, self.context.port = guest_access, port
        self.backend.recover()
        self._images.recover()
        self._snapshots.recover()
        self._machine_images.recover()
        self._reconciler.start()

    def stop(self) -> None:
        self._reconciler.stop()
