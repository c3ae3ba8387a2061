"""A user's computer whose cloud is Google's and whose workspace is in a bucket there."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outlast.clouds.gcp.cloud import GcpCloud
from outlast.workspace import open_workspace
from outlast_gcp_emulator.environment import PROJECT
from tests.support.gcp import Rehearsal
from tests.support.home import Home


@contextmanager
def at_home(root: Path, rehearsal: Rehearsal, cloud: GcpCloud) -> Iterator[Home]:
    """A separate home; its processes and machines are removed afterwards."""
    bucket = f"box-{secrets.token_hex(4)}"
    cloud.client.call("storage", "POST", "b", query={"project": PROJECT}, body={"name": bucket})
    own = Home(root)
    own.environment |= {**rehearsal.variables, "OUTLAST_WORKSPACE": f"gs://{bucket}/ws"}
    own.workspace = open_workspace(f"gs://{bucket}/ws")
    yield own
    own.clean()
    for machine in cloud.machines():
        cloud.delete(machine.name)
