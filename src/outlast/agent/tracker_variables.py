"""The variables by which experiment trackers continue one run over all attempts."""

from __future__ import annotations

import hashlib

from outlast.errors import WorkspaceError
from outlast.runs.metrics import attempts_with_metrics, read
from outlast.store.bucket import Bucket
from outlast.workspace import RunRequest, Workspace

_OFFLINE = ("offline", "dryrun")


def tracker_variables(workspace: Workspace, request: RunRequest, outputs: str) -> dict[str, str]:
    """Return the variables of one run. `[env]` and `[secrets]` replace them."""
    found = names_of(workspace.id, request.run)
    if request.spec.env.get("WANDB_MODE") in _OFFLINE:
        # No server knows the last step, and files elsewhere would be lost with the machine.
        step = logged_step(workspace.bucket, request.run)
        found |= {"WANDB_DIR": outputs, "OUTLAST_LOGGED_STEP": str(step)}
    return found


def names_of(workspace_id: str, run: str) -> dict[str, str]:
    """Return variables that are the same in all attempts of a run and differ between runs of all workspaces."""
    if not workspace_id:
        return {}
    name = f"{workspace_id}-{run}"
    # Comet accepts 32 to 50 letters and digits.
    comet = hashlib.sha256(name.encode()).hexdigest()[:40]
    wandb = {"WANDB_RUN_ID": name, "WANDB_RESUME": "allow", "WANDB_NAME": run}
    return {**wandb, "COMET_EXPERIMENT_KEY": comet, "OUTLAST_RUN_ID": name}


def logged_step(bucket: Bucket, run: str) -> int:
    """Return the last step that earlier attempts logged; -1 if there is none, or the store does not answer."""
    try:
        rows = [row for attempt in attempts_with_metrics(bucket, run) for row in read(bucket, run, attempt, newest=1)]
    except WorkspaceError:
        return -1
    return max((row.step for row in rows), default=-1)
