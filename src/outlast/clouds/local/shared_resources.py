"""The databases and volumes that machines of the local cloud share. Their modules are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from outlast.clouds.cloud import Boot

if TYPE_CHECKING:
    from outlast.clouds.local.databases import LocalDatabases
    from outlast.clouds.local.volumes import LocalVolumes


class SharedResources:
    """The part of `LocalCloud` that owns databases and volumes."""

    root: str

    @property
    def databases(self) -> LocalDatabases:
        from outlast.clouds.local.databases import LocalDatabases

        return LocalDatabases(self.root)

    @property
    def volumes(self) -> LocalVolumes:
        from outlast.clouds.local.volumes import LocalVolumes

        return LocalVolumes(self.root)

    def with_database_ports(self, boot: Boot) -> Boot:
        """Start the databases of a machine, and add their ports to those that it reaches on its loopback."""
        if boot.host is None or not (boot.host.databases or boot.host.all_databases):
            return boot
        ports = (*boot.host.ports, *self.databases.ports(boot.host.databases))
        if boot.host.all_databases:
            running = (database.port for database in self.databases.list_all() if database.state == "ready")
            ports = (*ports, *(port for port in running if port and port not in ports))
        return msgspec.structs.replace(boot, host=msgspec.structs.replace(boot.host, ports=ports))
