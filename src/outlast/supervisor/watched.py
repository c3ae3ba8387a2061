"""The story of a run as the observer keeps it between rounds."""

from __future__ import annotations

import msgspec

from outlast.runs.story import Story
from outlast.spec.spec import Spec


class Watched(msgspec.Struct, kw_only=True):
    """The cached story of a run, and when it last changed."""

    story: Story
    spec: Spec
    # The submitter's PATH.
    path: str = ""
    heartbeat_at: float = 0.0
    since: float = 0.0
    read_at: float = 0.0
    # The number of attempts, and whether the last one has started.
    phase: tuple[int, bool] = (0, False)
    limited_since: float = 0.0
