"""Ray's node provider: forwards the autoscaler's calls to `provider_server.py` on the head, over a socket.

Only Ray imports this module, in its own Python: the file is copied next to Ray, so it needs the standard library and
Ray only. Many threads call it.
"""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

from ray.autoscaler.node_launch_exception import NodeLaunchException
from ray.autoscaler.node_provider import NodeProvider

_CALL_S = 900.0


class OutlastNodeProvider(NodeProvider):
    """The machines of one cluster, as Ray's nodes."""

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        self.path = str(provider_config["outlast"]["socket"])

    def _call(self, call: str, **args: Any) -> Any:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_CALL_S)
            connection.connect(self.path)
            connection.sendall(json.dumps({"call": call, "args": args}).encode() + b"\n")
            with connection.makefile("rb") as reader:
                answer = json.loads(reader.readline() or b"{}")
        if "ok" not in answer:
            raise RuntimeError(str(answer.get("message", "the head's program sent no message")))
        return answer["ok"]

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        return list(self._call("nodes", tags=tag_filters))

    def is_running(self, node_id: str) -> bool:
        return bool(self._call("is_running", name=node_id))

    def is_terminated(self, node_id: str) -> bool:
        return bool(self._call("is_terminated", name=node_id))

    def node_tags(self, node_id: str) -> dict[str, str]:
        return dict(self._call("tags", name=node_id))

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        self._call("set_tags", name=node_id, tags=tags)

    def internal_ip(self, node_id: str) -> str:
        return str(self._call("address", name=node_id))

    def external_ip(self, node_id: str) -> str:
        return self.internal_ip(node_id)

    def create_node(self, node_config: dict[str, Any], tags: dict[str, str], count: int) -> dict[str, Any]:
        created: dict[str, Any] = {}
        for _ in range(count):
            answer = self._call("create", kind=node_config["kind"], tags=dict(tags))
            if "failed" in answer:
                raise NodeLaunchException(answer["failed"][:20], answer["why"], sys.exc_info())
            created[answer["name"]] = {}
        return created

    def terminate_node(self, node_id: str) -> dict[str, Any] | None:
        self._call("delete", name=node_id)
        return None

    # Ray's launcher would call these; its autoscaler does not.

    @staticmethod
    def bootstrap_config(cluster_config: dict[str, Any]) -> dict[str, Any]:
        return cluster_config

    def prepare_for_head_node(self, cluster_config: dict[str, Any]) -> dict[str, Any]:
        return cluster_config
