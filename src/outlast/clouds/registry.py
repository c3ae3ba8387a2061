"""The clouds by name, made when they are first asked for. Knows which there are, and nothing about any of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from outlast.clouds.cloud import Cloud, InteractiveCloud
    from outlast.workspace import Workspace


class Clouds(Mapping[str, "Cloud"]):
    """The clouds by name. Who goes through all of them meets only those that were named: others are not asked."""

    def __init__(self, names: Iterable[str] = (), *, own: bool = True) -> None:
        """`own`: this computer's, too."""
        self._made: dict[str, Cloud] = {}
        for name in ("local", *names) if own else names:
            self.get(name)

    def __getitem__(self, name: str) -> Cloud:
        if name not in self._made:
            self._made[name] = _make(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._made))

    def __len__(self) -> int:
        return len(self._made)


def _make(name: str) -> Cloud:
    """Raises KeyError."""
    if name == "local":
        from outlast.clouds.local.cloud import LocalCloud

        return LocalCloud()
    if name == "gcp":
        from outlast.clouds.gcp.cloud import GcpCloud

        return GcpCloud()
    if name == "aws":
        from outlast.clouds.aws.cloud import AwsCloud

        return AwsCloud()
    raise KeyError(name)


def clouds(workspace: Workspace | None = None) -> Mapping[str, Cloud]:
    """Every cloud that this installation can talk to; the workspace remembers which of them it has to do with."""
    return Clouds(workspace.clouds() if workspace is not None else ())


def interactive_clouds(workspace: Workspace | None = None) -> Mapping[str, InteractiveCloud]:
    """The clouds on which people can work by hand, and do so in this workspace."""
    known = clouds(workspace)
    return {name: cast("InteractiveCloud", cloud) for name, cloud in known.items() if hasattr(cloud, "access")}
