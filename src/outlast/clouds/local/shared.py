"""The resources that several machines of the local cloud share: databases and volumes. Imported on first use."""

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
        if boot.host is None or not boot.host.databases:
            return boot
        ports = (*boot.host.ports, *self.databases.ports(boot.host.databases))
        return msgspec.structs.replace(boot, host=msgspec.structs.replace(boot.host, ports=ports))
