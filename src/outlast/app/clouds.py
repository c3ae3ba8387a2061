"""The clouds of a workspace, shared by all parts of a process: their tokens, connections and caches."""

from __future__ import annotations

import os
import weakref

from outlast.app.user_config import export_networks
from outlast.clouds import registry
from outlast.clouds.registry import Clouds as Clouds
from outlast.clouds.traits import known_clouds as known_clouds
from outlast.workspace import Workspace

_clouds: weakref.WeakKeyDictionary[Workspace, Clouds] = weakref.WeakKeyDictionary()


def clouds(workspace: Workspace | None = None) -> Clouds:
    """Return the clouds of the workspace, or those that need none."""
    export_networks(os.environ)
    if workspace is None:
        return registry.clouds()
    if workspace not in _clouds:
        _clouds[workspace] = registry.clouds(workspace)
    return _clouds[workspace]
