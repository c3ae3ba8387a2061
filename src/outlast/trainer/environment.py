"""Where the trainer runs: on a machine of a run, in a launcher with several ranks, or on a bare laptop."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """What the variables of the agent and of launchers (torchrun) say."""

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
    # The mean life of a machine as the workspace has seen it; what the best interval between saves is told from.
    mean_life_s: float


def detect_environment(environment: Mapping[str, str] | None = None, *, folder: str = "") -> Environment:
    """From the environment. On a laptop everything is below `.outlast-local` in the current folder."""
    env = os.environ if environment is None else environment
    on_machine = "OUTLAST_RUN" in env
    home = os.path.join(folder or os.getcwd(), ".outlast-local")

    def place(variable: str, name: str) -> str:
        return env.get(variable) or os.path.join(home, name)

    return Environment(
        on_machine=on_machine,
        run=env.get("OUTLAST_RUN", ""),
        attempt=int(env.get("OUTLAST_ATTEMPT", "1")),
        checkpoints=place("OUTLAST_CHECKPOINT_DIR", "checkpoints"),
        outputs=place("OUTLAST_OUTPUT_DIR", "outputs"),
        metrics_file=place("OUTLAST_METRICS_FILE", "metrics.jsonl"),
        notice_file=place("OUTLAST_NOTICE_FILE", "notice.json"),
        done_file=place("OUTLAST_DONE_FILE", "done.json"),
        params=json.loads(env.get("OUTLAST_PARAMS", "{}")),
        # Lightning's own launcher names the rank on this machine alone.
        rank=int(env.get("RANK") or env.get("LOCAL_RANK") or "0"),
        ranks=int(env.get("WORLD_SIZE", "1")),
        mean_life_s=float(env.get("OUTLAST_MEAN_LIFE_S", "7200")),
    )
