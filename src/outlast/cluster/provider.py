"""Ray's node provider: carries what its autoscaler asks to the head's own program (`nodes.py`), by a socket.

Imported by Ray alone, in Ray's own Python, whichever that is: this file is copied beside it, needs the standard library
and Ray, and nothing of ours. Called from many threads.
"""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

from ray.autoscaler.node_launch_exception import NodeLaunchException
from ray.autoscaler.node_provider import NodeProvider

_CALL_S = 900.0


class OutlastNodes(NodeProvider):
    """The machines of one cluster, for Ray."""

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        self.path = str(provider_config["outlast"]["socket"])

    def _ask(self, call: str, **given: Any) -> Any:
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(_CALL_S)
            door.connect(self.path)
            door.sendall(json.dumps({"call": call, "given": given}).encode() + b"\n")
            with door.makefile("rb") as reader:
                answer = json.loads(reader.readline() or b"{}")
        if "ok" not in answer:
            raise RuntimeError(str(answer.get("message", "the head's program said nothing")))
        return answer["ok"]

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        return list(self._ask("nodes", tags=tag_filters))

    def is_running(self, node_id: str) -> bool:
        return bool(self._ask("is_running", name=node_id))

    def is_terminated(self, node_id: str) -> bool:
        return bool(self._ask("is_terminated", name=node_id))

    def node_tags(self, node_id: str) -> dict[str, str]:
        return dict(self._ask("tags", name=node_id))

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        self._ask("set_tags", name=node_id, tags=tags)

    def internal_ip(self, node_id: str) -> str:
        return str(self._ask("address", name=node_id))

    def external_ip(self, node_id: str) -> str:
        return self.internal_ip(node_id)

    def create_node(self, node_config: dict[str, Any], tags: dict[str, str], count: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for _ in range(count):
            answer = self._ask("create", kind=node_config["kind"], tags=dict(tags))
            if "failed" in answer:
                raise NodeLaunchException(answer["failed"][:20], answer["why"], sys.exc_info())
            made[answer["name"]] = {}
        return made

    def terminate_node(self, node_id: str) -> dict[str, Any] | None:
        self._ask("delete", name=node_id)
        return None

    # What Ray's launcher would ask, and its autoscaler does not

    @staticmethod
    def bootstrap_config(cluster_config: dict[str, Any]) -> dict[str, Any]:
        return cluster_config

    def prepare_for_head_node(self, cluster_config: dict[str, Any]) -> dict[str, Any]:
        return cluster_config
