"""What Ray is started with: its variables, the words of `ray start`, the autoscaler's file. No IO."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from outlast.clouds.cloud import Offer
from outlast.cluster.record import DASHBOARD_PORT, PORT, Cluster
from outlast.spec.cluster import NodeKind

# By default a machine that vanishes without a word is missed after a minute, and a task that waits for it hangs for
# seven. With these it is 8 and 13 seconds. They must hold on every node and for the drivers, which inherit them.
WATCHFUL = {
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_grpc_client_keepalive_time_ms": "5000",
    "RAY_grpc_client_keepalive_timeout_ms": "5000",
}
_OBJECT_STORE_PART = 0.3
# Nodes of one computer would each take a part of all its memory.
_LOCAL_OBJECT_STORE = 100_000_000


def environment(cluster: Cluster, machine: str, kind: str, token_path: str) -> dict[str, str]:
    """Of Ray and of everything that talks to it."""
    found = {
        **WATCHFUL,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": token_path,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_CLOUD_INSTANCE_ID": machine,
        "RAY_NODE_TYPE_NAME": kind,
        "RAY_enable_autoscaler_v2": "1",
        **cluster.spec.env,
    }
    if cluster.cloud == "local":
        # Each machine sees the memory of the whole computer, and would kill its tasks for what others use.
        found |= {"RAY_memory_monitor_refresh_ms": "0", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
    return found


def resources(kind: NodeKind, offer: Offer | None) -> dict[str, float]:
    """What Ray believes that a node has: what the file says, and the machine's own for what it does not."""
    found = dict(kind.resources)
    if offer is not None:
        found.setdefault("CPU", float(offer.cpus))
        if offer.gpus:
            found.setdefault("GPU", float(offer.gpus))
    return found


def start_words(
    ray: str, cluster: Cluster, kind: NodeKind, has: Mapping[str, float], *, address: str, head: str, config: str = ""
) -> list[str]:
    """`ray start`; `address` is the node's own, `head` that of the head if this is none."""
    given = {"object-store-memory": _object_store(cluster, has), **kind.options}
    argv = [ray, "start", "--block", f"--node-ip-address={address}", "--disable-usage-stats"]
    if head:
        argv += [f"--address={head}:{PORT}"]
    else:
        argv += ["--head", f"--port={PORT}", f"--autoscaling-config={config}", "--include-dashboard=true"]
        # Reached through ssh alone.
        argv += ["--dashboard-host=127.0.0.1", f"--dashboard-port={DASHBOARD_PORT}"]
    argv += [f"--num-cpus={int(has.get('CPU', 1))}"]
    if has.get("GPU"):
        argv += [f"--num-gpus={int(has['GPU'])}"]
    own = {name: amount for name, amount in has.items() if name not in ("CPU", "GPU", "memory", "object_store_memory")}
    if own:
        argv += [f"--resources={json.dumps(own)}"]
    return [*argv, *(f"--{name}={value}" if value else f"--{name}" for name, value in given.items() if value != "-")]


def _object_store(cluster: Cluster, has: Mapping[str, float]) -> str:
    if "object_store_memory" in has:
        return str(int(has["object_store_memory"]))
    return str(_LOCAL_OBJECT_STORE) if cluster.cloud == "local" else "-"


def autoscaling_config(cluster: Cluster, *, socket: str) -> dict[str, Any]:
    """The file that Ray's autoscaler reads. A provider from outside is given no defaults: every field must be there."""
    spec = cluster.spec
    return {
        "cluster_name": cluster.name,
        "max_workers": spec.max_workers,
        "upscaling_speed": spec.upscaling_speed,
        "idle_timeout_minutes": spec.idle_s / 60.0,
        "provider": {
            "type": "external",
            "module": "outlast_nodes.OutlastNodes",
            "use_internal_ips": True,
            # A worker's own boot script starts Ray; nobody logs in from the head.
            "disable_node_updaters": True,
            # Workers of a head that was lost are adopted, whatever they were launched with.
            "disable_launch_config_check": True,
            "outlast": {"socket": socket},
        },
        "auth": {"ssh_user": "root"},
        "available_node_types": {
            kind.name: {
                "resources": _whole(cluster.has.get(kind.name, {})),
                "node_config": {"kind": kind.name},
                "min_workers": kind.min,
                "max_workers": kind.max,
            }
            for kind in (spec.head, *spec.workers)
        },
        "head_node_type": spec.head.name,
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
        "rsync_exclude": [],
        "rsync_filter": [],
        "initialization_commands": [],
        "setup_commands": [],
        "head_setup_commands": [],
        "worker_setup_commands": [],
        "head_start_ray_commands": [],
        "worker_start_ray_commands": [],
        "docker": {},
    }


def _whole(has: Mapping[str, float]) -> dict[str, float | int]:
    """Ray wants whole numbers where there are any."""
    return {name: int(amount) if amount == int(amount) else amount for name, amount in has.items()}
