"""The locations of outputs in a workspace."""

from __future__ import annotations

# Per attempt: a zombie cannot overwrite the outputs of a later attempt.
OF_ATTEMPT = "runs/{run}/outputs/{attempt}/"
# Outputs that were final before the end of their attempt, such as results of finished trials.
FINAL = OF_ATTEMPT.format(run="{run}", attempt=0)
