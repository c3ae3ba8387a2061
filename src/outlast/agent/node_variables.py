"""The variables by which the command of a distributed run finds the other machines: ours, and those of launchers."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from outlast.agent.node import NodePlace
from outlast.workspace import RunRequest

# From torchrun's default on. Another port for each attempt: a process of the one before may still hold its port.
_PORT, _PORTS = 29500, 1000


def node_variables(
    request: RunRequest, place: NodePlace, addresses: Sequence[str], attempt: int, gpus: int
) -> dict[str, str]:
    """Return the variables of one machine, which has so many GPUs. Values that the user sets take precedence.

    torchrun reads each of its options from a variable `PET_` with the option's name; `accelerate` and JAX read
    MASTER_ADDR and MASTER_PORT.
    """
    env = request.spec.env
    master = env.get("MASTER_ADDR") or (addresses[0] if addresses else "127.0.0.1")
    port = env.get("MASTER_PORT") or str(_PORT + zlib.crc32(f"{request.run} {attempt}".encode()) % _PORTS)
    return {
        "OUTLAST_NODES": str(place.nodes),
        "OUTLAST_NODE_RANK": str(place.rank),
        "OUTLAST_NODE_IPS": "\n".join(addresses),
        "OUTLAST_GPUS_PER_NODE": str(gpus),
        "MASTER_ADDR": master,
        "MASTER_PORT": port,
        "PET_NNODES": str(place.nodes),
        "PET_NODE_RANK": str(place.rank),
        "PET_MASTER_ADDR": master,
        "PET_MASTER_PORT": port,
        "PET_NPROC_PER_NODE": str(gpus) if gpus else "1",
    }
