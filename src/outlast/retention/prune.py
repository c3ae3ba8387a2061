"""Pruning: delete the runs that a rule names, then the shared objects that nothing refers to any more."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from outlast.errors import WorkspaceError
from outlast.retention.collect import MIN_AGE_S, Collector, SharedObject
from outlast.retention.delete import DeletedObjects, RunDeleter
from outlast.retention.select import due
from outlast.runs.ended import EndedRun
from outlast.runs.metrics import stitched
from outlast.spec.spec import RetentionSpec
from outlast.workspace import Workspace


class PruneResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a prune, or of a dry run."""

    runs: tuple[str, ...] = ()
    objects: int = 0
    bytes: int = 0
    shared_objects: int = 0
    shared_bytes: int = 0
    # Run → the reason why it stays although the rule names it.
    kept: dict[str, str] = {}
    dry_run: bool = False


class Pruner:
    """Deletes runs of one workspace, then what only they referred to. Several processes may do so at once."""

    deleter_type = RunDeleter
    collector_type = Collector

    def __init__(self, workspace: Workspace, *, min_age_s: float = MIN_AGE_S) -> None:
        self.workspace = workspace
        self.min_age_s = min_age_s
        self.deleter = self.deleter_type(workspace)

    def delete(self, runs: Sequence[str], *, keep_outputs: bool, dry_run: bool) -> PruneResult:
        records = [self.deleter.record(run) for run in runs]
        found = self.deleter.delete(records, keep_outputs=keep_outputs, dry_run=dry_run)
        return self._collected(found, dry_run=dry_run)

    def prune(self, rule: RetentionSpec, *, dry_run: bool = False) -> PruneResult:
        if not dry_run:
            self.deleter.index.rebuild()
        records, _ = self.deleter.index.newest()
        if not dry_run:
            records = self.deleter.finish(records)
        return self._collected(self._delete_due(records, rule, dry_run=dry_run), dry_run=dry_run)

    def apply_rules(self) -> PruneResult:
        records, _ = self.deleter.index.newest()
        results = [
            self._delete_due([record for record in records if record.retention == rule], rule)
            for rule in {record.retention for record in records}
            if rule is not None
        ]
        found = DeletedObjects(
            runs=tuple(run for one in results for run in one.runs),
            objects=sum(one.objects for one in results),
            bytes=sum(one.bytes for one in results),
        )
        if not found.runs:
            return _result(found, ())
        self.deleter.finish(records)
        return self._collected(found, dry_run=False)

    def _delete_due(self, records: Sequence[EndedRun], rule: RetentionSpec, *, dry_run: bool = False) -> DeletedObjects:
        values = _values(self.workspace, records, rule)
        return self.deleter.delete(
            due(records, rule, now=self.workspace.clock(), values=values),
            keep_outputs=rule.keep_outputs,
            older_than_s=rule.older_than_s,
            dry_run=dry_run,
        )

    def _collected(self, found: DeletedObjects, *, dry_run: bool) -> PruneResult:
        shared = () if dry_run else self.collector_type(self.workspace, min_age_s=self.min_age_s).collect()
        return _result(found, shared, dry_run=dry_run)


def delete_runs(
    workspace: Workspace, runs: Sequence[str], *, keep_outputs: bool = False, dry_run: bool = False
) -> PruneResult:
    """Delete ended runs by name. Raises UsageError if one is live, before any is deleted."""
    return Pruner(workspace).delete(runs, keep_outputs=keep_outputs, dry_run=dry_run)


def prune(workspace: Workspace, rule: RetentionSpec, *, dry_run: bool = False) -> PruneResult:
    """Delete the ended runs that a rule names, and the shared objects that nothing refers to."""
    return Pruner(workspace).prune(rule, dry_run=dry_run)


def apply_rules(workspace: Workspace) -> PruneResult:
    """Delete the ended runs whose own `[retention]` is due. Without such runs it reads the index only."""
    return Pruner(workspace).apply_rules()


def _values(workspace: Workspace, records: Sequence[EndedRun], rule: RetentionSpec) -> dict[str, float]:
    """Return the best value of the rule's metric that each run logged."""
    if not rule.keep_best:
        return {}
    order, _, metric = rule.metric.partition(":")

    def value(record: EndedRun) -> float | None:
        try:
            points = stitched(workspace.bucket, record.run, record.state).series.get(metric, ())
        except WorkspaceError:
            return None
        found = [point.value for point in points]
        return (max(found) if order == "max" else min(found)) if found else None

    values = workspace.each(value, records)
    return {record.run: found for record, found in zip(records, values, strict=True) if found is not None}


def _result(found: DeletedObjects, shared: Sequence[SharedObject], *, dry_run: bool = False) -> PruneResult:
    return PruneResult(
        runs=found.runs,
        objects=found.objects,
        bytes=found.bytes,
        shared_objects=sum(len(one.entries) for one in shared),
        shared_bytes=sum(one.bytes for one in shared),
        kept=found.kept,
        dry_run=dry_run,
    )
