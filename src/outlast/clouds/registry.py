"""The clouds of this installation by name: which exist, and which are enabled. Constructs each at its first use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, cast

from outlast.clouds.traits import DEFAULT_CLOUD, is_known, plugin

if TYPE_CHECKING:
    from outlast.clouds.cloud import Cloud, InteractiveCloud
    from outlast.workspace import Workspace

_CLASSES = {
    "local": ("outlast.clouds.local.cloud", "LocalCloud"),
    "gcp": ("outlast.clouds.gcp.cloud", "GcpCloud"),
    "aws": ("outlast.clouds.aws.cloud", "AwsCloud"),
}


class Clouds(Mapping[str, "Cloud"]):
    """The clouds by name.

    A lookup finds every cloud of this installation and enables none. Iteration covers the enabled clouds only, so a
    command contacts no cloud that its workspace does not use.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        """Enable these clouds. Names that this installation does not have are ignored."""
        self._made: dict[str, Cloud] = {}
        self._enabled: dict[str, None] = {}
        for name in names:
            self.enable(name)

    def enable(self, name: str) -> None:
        """Include a cloud in the iteration; may be repeated. Ignores a cloud that this installation does not have."""
        if is_known(name):
            self[name]  # an account that is not set up is reported here, and not in the middle of the work
            self._enabled[name] = None

    def __getitem__(self, name: str) -> Cloud:
        if name not in self._made:
            self._made[name] = _make(name)
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and is_known(name)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._enabled))

    def __len__(self) -> int:
        return len(self._enabled)


def _make(name: str) -> Cloud:
    """Construct a cloud. Raises KeyError for an unknown name, and CloudError if a plugin cannot be imported."""
    if name in _CLASSES:
        module, kind = _CLASSES[name]
        return cast("Cloud", getattr(import_module(module), kind)())
    return cast("Cloud", plugin(name)())


def enable(clouds: Mapping[str, Cloud], name: str) -> None:
    """Enable a cloud of the registry. In a plain mapping every cloud is enabled already."""
    if isinstance(clouds, Clouds):
        clouds.enable(name)


def clouds(workspace: Workspace | None = None) -> Clouds:
    """Return the clouds, with this computer's own and those that the workspace uses enabled."""
    return Clouds((DEFAULT_CLOUD, *(workspace.clouds() if workspace is not None else ())))


def interactive_clouds(workspace: Workspace | None = None) -> Mapping[str, InteractiveCloud]:
    """Return the enabled clouds on which users can log in to machines."""
    known = clouds(workspace)
    return {name: cast("InteractiveCloud", cloud) for name, cloud in known.items() if hasattr(cloud, "access")}
