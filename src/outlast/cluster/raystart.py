"""How Ray is started: its environment, the arguments of `ray start`, the autoscaler's configuration. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from outlast.clouds.cloud import Offer
from outlast.clouds.traits import traits_of
from outlast.cluster.record import DASHBOARD_PORT, PORT, Cluster
from outlast.spec.cluster import NodeKind

# By default, Ray notices a vanished machine after one minute, and a task that waits for it hangs for seven. With these
# it takes 8 and 13 seconds. Every node and driver needs them; drivers inherit them.
HEALTH_CHECKS = {
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_grpc_client_keepalive_time_ms": "5000",
    "RAY_grpc_client_keepalive_timeout_ms": "5000",
}
_OBJECT_STORE_PART = 0.3
# On the local cloud, each node would otherwise take this part of the whole computer's memory.
_LOCAL_OBJECT_STORE = 100_000_000


def environment(cluster: Cluster, machine: str, kind: str, token_path: str) -> dict[str, str]:
    """Return the environment of Ray and its clients."""
    found = {
        **HEALTH_CHECKS,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": token_path,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_CLOUD_INSTANCE_ID": machine,
        "RAY_NODE_TYPE_NAME": kind,
        "RAY_enable_autoscaler_v2": "1",
        **cluster.spec.env,
    }
    if not traits_of(cluster.cloud).remote:
        # Each machine sees the memory use of the whole computer, and Ray would kill tasks because of other programs.
        found |= {"RAY_memory_monitor_refresh_ms": "0", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
    return found


def node_resources(kind: NodeKind, offer: Offer | None) -> dict[str, float]:
    """Return the resources that Ray assumes for a node: those of the cluster file, else those of the machine."""
    found = dict(kind.resources)
    if offer is not None:
        found.setdefault("CPU", float(offer.cpus))
        if offer.gpus:
            found.setdefault("GPU", float(offer.gpus))
    return found


def start_argv(
    ray: str, cluster: Cluster, kind: NodeKind, has: Mapping[str, float], *, address: str, head: str, config: str = ""
) -> list[str]:
    """Return the argv of `ray start`. `address` is the node's; `head` is the head's, empty on the head itself."""
    given = {"object-store-memory": _object_store(cluster, has), **kind.options}
    argv = [ray, "start", "--block", f"--node-ip-address={address}", "--disable-usage-stats"]
    if head:
        argv += [f"--address={head}:{PORT}"]
    else:
        argv += ["--head", f"--port={PORT}", f"--autoscaling-config={config}", "--include-dashboard=true"]
        # Reachable only through ssh.
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
    return "-" if traits_of(cluster.cloud).remote else str(_LOCAL_OBJECT_STORE)


def autoscaling_config(cluster: Cluster, *, socket: str) -> dict[str, Any]:
    """Return the autoscaler's configuration. Ray has no defaults for external providers: every field is required."""
    spec = cluster.spec
    return {
        "cluster_name": cluster.name,
        "max_workers": spec.max_workers,
        "upscaling_speed": spec.upscaling_speed,
        "idle_timeout_minutes": spec.idle_s / 60.0,
        "provider": {
            "type": "external",
            "module": "outlast_provider.OutlastNodeProvider",
            "use_internal_ips": True,
            # The worker's boot script starts Ray, so the head needs no ssh.
            "disable_node_updaters": True,
            # Adopt workers of a lost head, even if their launch configuration differs.
            "disable_launch_config_check": True,
            "outlast": {"socket": socket},
        },
        "auth": {"ssh_user": "root"},
        "available_node_types": {
            kind.name: {
                "resources": _with_integers(cluster.resources.get(kind.name, {})),
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


def _with_integers(has: Mapping[str, float]) -> dict[str, float | int]:
    """Return whole amounts as integers, as Ray requires."""
    return {name: int(amount) if amount == int(amount) else amount for name, amount in has.items()}
