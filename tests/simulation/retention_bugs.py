"""Planted bugs of pruning: each breaks one promise of `retention/` in a typical way."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.code.record import CodeRecord
from outlast.retention.collect import Collector, SharedObject
from outlast.retention.delete import RunDeleter
from outlast.retention.prune import Pruner
from outlast.runs.deleted import DeletedRuns
from outlast.runs.ended import EndedRun
from outlast.runs.events import Submitted
from outlast.spec.spec import Spec
from outlast.store.shared import marks_of
from outlast.testing.simretention import RetentionWorld
from outlast.workspace import Workspace


class _ReadsFirst(Collector):
    """Reads the references before it announces itself."""

    def collect(self) -> list[SharedObject]:
        unused = self.unreferenced()
        mark = self.workspace.ids()
        for one in unused:
            self.bucket.create(marks_of(one.key) + mark, b"")
        self._delete([entry.key for one in unused for entry in one.entries])
        self._delete([marks_of(one.key) + mark for one in unused])
        return unused


class _UnmarksFirst(Collector):
    """Removes its marks before it deletes."""

    def collect(self) -> list[SharedObject]:
        candidates = self.unreferenced()
        mark = self.workspace.ids()
        for one in candidates:
            self.bucket.create(marks_of(one.key) + mark, b"")
        names = self.references.names()
        self._delete([marks_of(one.key) + mark for one in candidates])
        unused = [one for one in candidates if one.name not in names]
        self._delete([entry.key for one in unused for entry in one.entries])
        return unused


class _DeletesFirst(RunDeleter):
    """Deletes the objects before the cost is on record."""

    def _retire(self, records: Sequence[EndedRun]) -> None:
        for record in records:
            self._delete_keys([entry.key for entry in self.bucket.list(f"runs/{record.run}/")])
        super()._retire(records)


class _LeavesRest(RunDeleter):
    """Never completes an interrupted deletion."""

    def finish(self, records: Sequence[EndedRun]) -> list[EndedRun]:
        return list(records)


class _TrustsTheWriter(RunDeleter):
    """Takes the age of a run from its events instead of the store."""

    def _younger(self, entries: object, older_than_s: float, *, now: float) -> set[str]:
        return set()


class _ForgetsNumbers(DeletedRuns):
    def retire(self, names: Sequence[str]) -> None:
        pass


class _ReusesNumbers(RunDeleter):
    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self.deleted = _ForgetsNumbers(workspace)


def _pruner(collector: type[Collector] = Collector, deleter: type[RunDeleter] = RunDeleter) -> type[Pruner]:
    return type("PlantedPruner", (Pruner,), {"collector_type": collector, "deleter_type": deleter})


class CollectsBeforeAnnouncing(RetentionWorld):
    pruner_type = _pruner(_ReadsFirst)


class UnmarksBeforeDeleting(RetentionWorld):
    pruner_type = _pruner(_UnmarksFirst)


class DeletesBeforeRecording(RetentionWorld):
    pruner_type = _pruner(deleter=_DeletesFirst)


class LeavesInterruptedDeletions(RetentionWorld):
    pruner_type = _pruner(deleter=_LeavesRest)


class BelievesOtherClocks(RetentionWorld):
    pruner_type = _pruner(deleter=_TrustsTheWriter)


class ReusesNumbers(RetentionWorld):
    pruner_type = _pruner(deleter=_ReusesNumbers)


class SubmitsUnchecked(RetentionWorld):
    """Does not check its references after they are written."""

    def write(self, workspace: Workspace, code: CodeRecord) -> str:
        request = workspace.reserve(Spec(name="run", command="train"), code, who="ada", version="")
        workspace.wake(request.run, durable=True)
        workspace.story(request.run).append_or_raise(Submitted(who="ada"), nonce=workspace.ids(), new=True)
        return request.run


class ChecksExistenceOnly(SubmitsUnchecked):
    """Takes an object that exists for one that stays."""

    def write(self, workspace: Workspace, code: CodeRecord) -> str:
        for key in code.shared_keys:
            workspace.bucket.head(key)
        return super().write(workspace, code)


_LOST = {"no_needed_object_is_deleted", "a_submitted_run_has_its_code"}
RETENTION_BUGS: dict[str, tuple[type[RetentionWorld], set[str]]] = {
    "references are read before the mark is written": (CollectsBeforeAnnouncing, _LOST),
    "the mark is removed before the deletion": (UnmarksBeforeDeleting, _LOST),
    "objects are deleted before the cost is recorded": (DeletesBeforeRecording, {"cost_is_recorded_first"}),
    "an interrupted deletion is never completed": (
        LeavesInterruptedDeletions,
        {"a_deletion_is_completed", "deleted_runs_are_not_listed"},
    ),
    "ages are taken from the writers' clocks": (BelievesOtherClocks, {"only_old_runs_are_deleted"}),
    "the numbers of deleted runs are used again": (
        ReusesNumbers,
        {"a_name_is_used_once", "cost_is_recorded_first", "no_live_run_is_deleted", "only_old_runs_are_deleted"},
    ),
    "a submission does not check its references": (
        SubmitsUnchecked,
        _LOST,
    ),
    "a submission checks only that its objects exist": (
        ChecksExistenceOnly,
        _LOST,
    ),
}
