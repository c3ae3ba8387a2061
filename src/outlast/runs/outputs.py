"""Where outputs are in a workspace."""

from __future__ import annotations

# Of each attempt: a zombie cannot overwrite what a later one wrote.
OF_ATTEMPT = "runs/{run}/outputs/{attempt}/"
# Those that were final before their attempt was over: results of parts that are done for good, and never done again.
FINAL = OF_ATTEMPT.format(run="{run}", attempt=0)
