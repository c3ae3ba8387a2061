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
    # The measured mean life of a machine, for the best interval between saves.
    mean_life_s: float


def detect_environment(environment: Mapping[str, str] | None = None, *, folder: str = "") -> Environment:
    """Read the environment. On a laptop, all paths are below `.outlast-local` in the current folder."""
    env = os.environ if environment is None else environment
    on_machine = "OUTLAST_RUN" in env
    home = os.path.join(folder or os.getcwd(), ".outlast-local")

    def path(variable: str, name: str) -> str:
        return env.get(variable) or os.path.join(home, name)

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
        # Lightning's launcher sets only the rank on this machine.
        rank=int(env.get("RANK") or env.get("LOCAL_RANK") or "0"),
        ranks=int(env.get("WORLD_SIZE", "1")),
        mean_life_s=float(env.get("OUTLAST_MEAN_LIFE_S", "7200")),
    )
