"""Types of the JSON that commands on runs print; `json_schema` has the others and the rules."""

# No `from __future__ import annotations` here: msgspec would compile every annotation again in each process.

import msgspec


class Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A type of output, which has no other fields."""


class RunRow(Shape, frozen=True, kw_only=True):
    """A run, as `ps` lists it."""

    run: str
    user: str
    # `running`, `booting`, `waiting` …; after the end: how it ended.
    state: str
    ending: str
    attempt: int | None
    cloud: str | None
    zone: str | None
    type: str | None
    spot: bool | None
    # The newest known step; null if there is none.
    step: int | None
    checkpoints: int
    # Seconds since 1970.
    submitted_at: float
    age_s: float
    cost_usd: float
    # The cost of copying checkpoints between clouds.
    egress_usd: float
    exit_code: int | None
    # The reason for waiting, or for the end.
    why: str
    warnings: list[str]
    limit: str
    # Machines of a distributed run, and how many of them are alive; 0 for a run on one machine.
    nodes: int
    nodes_alive: int
    note: str
    # The `exclusive` resource that it holds.
    holds: str
    # The reason why no checkpoint was committed for minutes although the folder changes.
    unsaved: str
    # The last value of each metric.
    metrics: dict[str, float]
    # What a live run uses now: shares between 0 and 1 of all CPUs and of all GPUs; null if unknown.
    cpu: float | None
    memory_bytes: int | None
    gpu: float | None


class NoteShown(Shape, frozen=True, kw_only=True):
    """The note and the tags of a run."""

    run: str
    tags: list[str]
    text: str
    # Who changed it last, and when, in seconds since 1970; empty and 0 without a note.
    by: str
    at: float


class SubmitResult(Shape, frozen=True, kw_only=True):
    """The run, group or sweep that was submitted."""

    workspace: str
    run: str = ""
    # For a file with `[tasks]`.
    group: str = ""
    runs: list[str] = []
    sweep: str = ""
