"""The location of a workspace's bucket, near which machines start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import msgspec

from outlast.clouds.cloud import Cloud
from outlast.clouds.traits import store_owner, traits_of
from outlast.errors import OutlastError
from outlast.spec.spec import Spec


@runtime_checkable
class HasBuckets(Protocol):
    """A cloud with an object store."""

    def bucket_location(self, bucket: str) -> str:
        """Return the region of a bucket, or the part of the world over which it is spread. Raises CloudError."""


# URL of a bucket → its location, which never changes.
_known: dict[str, str] = {}


def bucket_location(url: str, clouds: Mapping[str, Cloud]) -> str:
    """Return the region of a workspace's bucket, or the part of the world; empty for a folder, and if it is unknown.

    Without the right to read it, machines start where they are cheapest.
    """
    scheme, _, rest = url.partition("://")
    bucket, owner = rest.partition("/")[0], store_owner(scheme if rest else "")
    if not owner:
        return ""
    place = f"{scheme}://{bucket}"
    if place not in _known:
        try:
            cloud = clouds[owner]
            found = cloud.bucket_location(bucket) if isinstance(cloud, HasBuckets) else ""
        except (OutlastError, KeyError):
            return ""
        if not found:
            return ""
        _known[place] = found
    return _known[place]


def with_location(spec: Spec, url: str, clouds: Mapping[str, Cloud]) -> Spec:
    """Return the spec with the location of the workspace's bucket, if a cloud may charge for the way to it."""
    if all(traits_of(name).free for name in spec.machine.clouds):
        return spec
    return msgspec.structs.replace(
        spec, machine=msgspec.structs.replace(spec.machine, near=bucket_location(url, clouds))
    )
