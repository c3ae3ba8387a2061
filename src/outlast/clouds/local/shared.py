"""What the local cloud keeps for several machines at once: databases and volumes. Loaded when they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outlast.clouds.local.databases import LocalDatabases
    from outlast.clouds.local.volumes import LocalVolumes


class Shared:
    """A part of `LocalCloud`."""

    root: str

    @property
    def databases(self) -> LocalDatabases:
        from outlast.clouds.local.databases import LocalDatabases

        return LocalDatabases(self.root)

    @property
    def volumes(self) -> LocalVolumes:
        from outlast.clouds.local.volumes import LocalVolumes

        return LocalVolumes(self.root)
