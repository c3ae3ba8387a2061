"""Deletion of runs: by name, by a rule, and what takes space. The command line and the public API share these."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.errors import UsageError
from outlast.retention.archive import archive_run, restore_run
from outlast.retention.prune import PruneResult, delete_runs, prune
from outlast.retention.usage import KINDS, SHARED_KINDS, disk_use
from outlast.runs.group import Groups
from outlast.spec.duration import duration_s
from outlast.spec.retention import goal
from outlast.spec.spec import RetentionSpec
from outlast.workspace import Workspace

__all__ = [
    "KINDS",
    "SHARED_KINDS",
    "archive_run",
    "delete_named",
    "disk_use",
    "keeps",
    "prune",
    "restore_run",
    "retention_rule",
]


def delete_named(
    workspace: Workspace, names: Sequence[str], *, keep_outputs: bool = False, dry_run: bool = False
) -> PruneResult:
    """Delete ended runs by name. A name is a run, a prefix, `last`, or a group. Raises UsageError if one is live."""
    groups = Groups(workspace)
    known = set(groups.all())
    found: list[str] = []
    for name in names:
        found += [seat.run for seat in groups.seats(name)] if name in known else [workspace.find(name)]
    return delete_runs(workspace, list(dict.fromkeys(found)), keep_outputs=keep_outputs, dry_run=dry_run)


def retention_rule(
    older_than: str | int | float,
    *,
    keep_best: int = 0,
    metric: str = "",
    failed: bool = False,
    outputs: str = "delete",
    prefix: str = "",
) -> RetentionSpec:
    """Return the rule of a prune. Raises UsageError; `prefix` precedes the names in its message."""

    def named(field: str) -> str:
        return f"{prefix}{field.replace('_', '-') if prefix else field}"

    try:
        age_s = duration_s(older_than)
    except ValueError as problem:
        hint = "write it like 30d or 12h"
        raise UsageError(f"{named('older_than')} {older_than}: {problem}", hint=hint) from problem
    if keep_best < 0:
        raise UsageError(f"{named('keep_best')} {keep_best}: expected a whole number of at least 1")
    if bool(keep_best) != bool(metric):
        example = f"e.g. {named('keep_best')} 3 and {named('metric')} min:loss"
        raise UsageError(f"{named('keep_best')} and {named('metric')} belong together", hint=example)
    try:
        metric = goal(metric) if metric else ""
    except ValueError as problem:
        raise UsageError(f"{named('metric')}: {problem}") from problem
    return RetentionSpec(
        older_than_s=age_s, keep_best=keep_best, metric=metric, failed=failed, keep_outputs=keeps(outputs)
    )


def keeps(outputs: str) -> bool:
    """Return whether outputs stay. Raises UsageError for another value than `keep` and `delete`."""
    if outputs not in ("keep", "delete"):
        raise UsageError(f"outputs: expected `keep` or `delete`, got {outputs!r}")
    return outputs == "keep"
