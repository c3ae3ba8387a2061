"""The environment of the trainer: on a machine of a run, in a launcher with several ranks, or on a laptop."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """The values of the variables that the agent and launchers (torchrun) set."""

    on_machine: bool
    run: str
    attempt: int
    checkpoints: str
    outputs: str
    metrics_file: str
    notice_file: str
    done_file: str
    params: dict[str, Any]
    rank: int
    ranks: int
    # Of a distributed run: its machines, the rank of this one, and the address of rank 0.
    nodes: int
    node: int
    master: tuple[str, int]
    # The ranks on this machine. They share the checkpoint folder, and the first of them publishes their checkpoints.
    local_ranks: range
    # The measured mean life of a machine, for the best interval between saves.
    mean_life_s: float
    # Names of the experiment trackers that receive the logged values; the name of the run there, which no run of
    # another workspace has; and the last step that earlier attempts logged, if a tracker cannot be asked for it.
    trackers: tuple[str, ...] = ()
    run_id: str = ""
    logged_step: int = -1


def detect_environment(environment: Mapping[str, str] | None = None, *, folder: str = "") -> Environment:
    """Read the environment. On a laptop, all paths are below `.outlast-local` in the current folder."""
    env = os.environ if environment is None else environment
    on_machine = "OUTLAST_RUN" in env
    home = os.path.join(folder or os.getcwd(), ".outlast-local")

    def path(variable: str, name: str) -> str:
        return env.get(variable) or os.path.join(home, name)

    nodes, node = int(env.get("OUTLAST_NODES", "1")), int(env.get("OUTLAST_NODE_RANK", "0"))
    rank, ranks, local = _ranks(env, nodes, node)

    return Environment(
        on_machine=on_machine,
        run=env.get("OUTLAST_RUN", ""),
        attempt=int(env.get("OUTLAST_ATTEMPT", "1")),
        checkpoints=path("OUTLAST_CHECKPOINT_DIR", "checkpoints"),
        outputs=path("OUTLAST_OUTPUT_DIR", "outputs"),
        metrics_file=path("OUTLAST_METRICS_FILE", "metrics.jsonl"),
        notice_file=path("OUTLAST_NOTICE_FILE", "notice.json"),
        done_file=path("OUTLAST_DONE_FILE", "done.json"),
        params=json.loads(env.get("OUTLAST_PARAMS", "{}")),
        rank=rank,
        ranks=ranks,
        nodes=nodes,
        node=node,
        master=(env.get("MASTER_ADDR", "127.0.0.1"), int(env.get("MASTER_PORT", "29500"))),
        local_ranks=local,
        mean_life_s=float(env.get("OUTLAST_MEAN_LIFE_S", "7200")),
        trackers=tuple(filter(None, map(str.strip, env.get("OUTLAST_TRACKERS", "").split(",")))),
        run_id=env.get("OUTLAST_RUN_ID", ""),
        logged_step=int(env.get("OUTLAST_LOGGED_STEP") or -1),
    )


def _ranks(env: Mapping[str, str], nodes: int, node: int) -> tuple[int, int, range]:
    """Return the rank of this process, the number of ranks, and the ranks on this machine."""
    local = int(env.get("LOCAL_RANK") or "0")
    if nodes == 1:
        # Lightning's launcher sets only the rank on this machine.
        ranks = int(env.get("WORLD_SIZE", "1"))
        return int(env.get("RANK") or local), ranks, range(ranks)
    # Without a launcher, one process runs on each machine.
    rank, ranks = int(env.get("RANK") or node), int(env.get("WORLD_SIZE") or nodes)
    count = int(env.get("LOCAL_WORLD_SIZE") or max(1, ranks // nodes))
    return rank, ranks, range(rank - local, rank - local + count)
