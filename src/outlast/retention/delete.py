"""Deletion of ended runs: their number is retired, their cost is recorded, and then their objects are deleted.

The order makes every interruption harmless: the number, the ledger page, the index, then the objects. A run on a ledger
page is deleted; `finish` removes what an interrupted deletion left of it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from outlast.errors import NoSuchRun, UsageError
from outlast.retention.collect import BATCH, CLOCK
from outlast.runs.deleted import DeletedRuns
from outlast.runs.ended import EndedRun, EndedRuns, record_of
from outlast.runs.group import Groups
from outlast.runs.notes import PREFIX as NOTES
from outlast.store.bucket import Entry
from outlast.store.parallel import gathered
from outlast.workspace import Workspace

# What stays of a run whose outputs are kept: it remains listed, with its story.
_KEPT = ("spec.json", "story/", "outputs/", "snapshot")
# A submission that was interrupted this long ago will not be continued.
_INTERRUPTED_S = 7 * 86400.0
# From this part of all runs on, one listing of all objects is cheaper than one per run.
_MANY = 8
# Listings at a time.
_LISTERS = 16


class DeletedObjects(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a deletion, or of a dry run."""

    runs: tuple[str, ...] = ()
    objects: int = 0
    bytes: int = 0
    # Run → the reason why it stays.
    kept: dict[str, str] = {}


class RunDeleter:
    """Deletes ended runs of one workspace. Several may run at once."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.bucket = workspace.bucket
        self.deleted = DeletedRuns(workspace)
        self.index = EndedRuns(workspace, each=workspace.each)

    def record(self, run: str) -> EndedRun:
        """Return the record of an ended run. Raises UsageError if it is live, and NoSuchRun."""
        state = self.workspace.story(run).refresh()
        if not state.exists:
            raise NoSuchRun(f"no run `{run}` in {self.workspace.url}", hint="see `outlast ps --all`")
        if not state.ending:
            raise UsageError(f"{run} is still live", hint=f"end it with `outlast cancel {run}`, then delete it")
        if not state.closed or run in self.workspace.heartbeats():
            raise UsageError(f"{run} has ended, but its machine is still being released", hint="try again in a moment")
        return record_of(run, state)

    def delete(
        self,
        records: Sequence[EndedRun],
        *,
        keep_outputs: bool = False,
        older_than_s: float = 0.0,
        dry_run: bool = False,
    ) -> DeletedObjects:
        """Delete these runs, except those that something live needs, or that are younger by the store's clock."""
        kept, drills, notes, now = gathered(
            self.workspace.each,
            lambda: self._needed([record.run for record in records]),
            lambda: [] if keep_outputs else list(self.bucket.list("drills/")),
            lambda: [] if keep_outputs else list(self.bucket.list(NOTES)),
            lambda: self.bucket.now(CLOCK) if older_than_s else 0.0,
        )
        chosen = [record for record in records if record.run not in kept]
        entries = self._entries([record.run for record in chosen])
        if older_than_s:
            young = self._younger(entries, older_than_s, now=now)
            kept |= dict.fromkeys(young, "it is younger by the store's clock")
            chosen = [record for record in chosen if record.run not in young]
        for entry in (*drills, *notes):
            if (run := entry.key.partition("/")[2].removesuffix(".json")) in entries:
                entries[run].append(entry)
        doomed = [
            entry for record in chosen for entry in entries[record.run] if not (keep_outputs and _stays(entry.key))
        ]
        if keep_outputs:
            chosen = [record for record in chosen if any(not _stays(entry.key) for entry in entries[record.run])]
        found = DeletedObjects(
            runs=tuple(record.run for record in chosen),
            objects=len(doomed),
            bytes=sum(entry.bytes for entry in doomed),
            kept=kept,
        )
        if not dry_run and chosen:
            if not keep_outputs:
                self._retire(chosen)
            self._delete_keys([entry.key for entry in doomed])
            if not keep_outputs:
                self._delete_groups([record.run for record in chosen])
        return found

    def finish(self, records: Sequence[EndedRun]) -> list[EndedRun]:
        """Remove what interrupted deletions and submissions left; return the ended runs that are not deleted.

        `records`: all ended runs.
        """
        gone, present = gathered(self.workspace.each, self.deleted.names, lambda: self.bucket.children("runs/"))
        left = [run for run in present if run in gone]
        if any(record.run in gone for record in records):
            self.index.remove(gone)
        entries = self._entries(left)
        keys = [entry.key for run in left for entry in entries[run]]
        abandoned = self._abandoned({*gone, *(record.run for record in records)}, present)
        self.deleted.retire(list(abandoned))
        keys += [entry.key for run_entries in abandoned.values() for entry in run_entries]
        self._delete_keys(keys)
        return [record for record in records if record.run not in gone]

    def _retire(self, records: Sequence[EndedRun]) -> None:
        self.deleted.add(records)
        self.index.remove([record.run for record in records])

    def _needed(self, runs: Collection[str]) -> dict[str, str]:
        """Return the runs that must stay, with the reason: live ones, and members of a live group or sweep."""
        from outlast.sweep.record import SweepStory, sweeps

        if not runs:
            return {}
        live, groups, found = gathered(
            self.workspace.each, self._live, lambda: self.bucket.children("groups/"), lambda: sweeps(self.workspace)
        )
        needed = {run: "it is not over" for run in runs if run in live}
        for group in groups:
            members = [run for run in runs if run.startswith(f"{group}-")]
            if members and any(run.startswith(f"{group}-") for run in live):
                needed |= dict.fromkeys(members, f"group {group} is live")
        for sweep in found:
            trials = [run for run in runs if run.startswith(f"{sweep}-")]
            if trials and not SweepStory(self.bucket, sweep).refresh().over:
                needed |= dict.fromkeys(trials, f"sweep {sweep} is not over")
        return needed

    def _entries(self, runs: Sequence[str]) -> dict[str, list[Entry]]:
        """Return all objects of each run."""
        if not runs:
            return {}
        present = self.bucket.children("runs/")
        if not len(runs) * _MANY > len(present) > _MANY:
            listed = self.workspace.each(lambda run: list(self.bucket.list(f"runs/{run}/")), runs)
            return dict(zip(runs, listed, strict=True))
        found: dict[str, list[Entry]] = {run: [] for run in runs}
        # In the order of the keys: `/` follows `-`.
        names = sorted(present, key=lambda run: f"{run}/")
        size = -(-len(names) // _LISTERS)
        spans = [names[begin : begin + size] for begin in range(0, len(names), size)]
        for entries in self.workspace.each(self._span, spans):
            for entry in entries:
                run = entry.key.split("/")[1]
                if run in found:
                    found[run].append(entry)
        return found

    def _span(self, names: Sequence[str]) -> list[Entry]:
        """Return the objects of neighbouring runs, page by page: a listing has no end that could be set."""
        after, end = f"runs/{names[0]}/", f"runs/{names[-1]}0"  # `0` follows `/`
        found: list[Entry] = []
        while True:
            page = list(self.bucket.list("runs/", after=after, limit=BATCH))
            found += [entry for entry in page if entry.key < end]
            if len(page) < BATCH or page[-1].key >= end:
                return found
            after = page[-1].key

    def _younger(self, entries: dict[str, list[Entry]], older_than_s: float, *, now: float) -> set[str]:
        """Return the runs that are younger than this by the times of the store."""
        ends = {
            run: max((e.modified_at for e in found if "/story/" in e.key), default=0.0)
            for run, found in entries.items()
        }
        return {run for run, at in ends.items() if now - at < older_than_s}

    def _live(self) -> set[str]:
        heartbeats, wakeups = gathered(self.workspace.each, self.workspace.heartbeats, self.workspace.wakeups)
        return {*heartbeats, *wakeups}

    def _abandoned(self, over: Collection[str], present: Sequence[str]) -> dict[str, list[Entry]]:
        """Return the requests without a story that are so old that no submission continues them."""
        groups, live = gathered(self.workspace.each, lambda: self.bucket.children("groups/"), self._live)
        known = {*over, *groups, *live}
        unknown = [run for run in present if run not in known]
        entries = self._entries(unknown)
        now = self.bucket.now(CLOCK) if unknown else 0.0
        return {
            run: found
            for run, found in entries.items()
            if found
            and not any("/story/" in entry.key for entry in found)
            and now - max(entry.modified_at for entry in found) > _INTERRUPTED_S
        }

    def _delete_groups(self, runs: Sequence[str]) -> None:
        """Delete the records of groups and sweeps all of whose runs are deleted, and retire their names."""
        from outlast.sweep.record import sweeps

        found, groups = gathered(
            self.workspace.each, lambda: sweeps(self.workspace), lambda: self.bucket.children("groups/")
        )

        def is_affected(name: str) -> bool:
            return any(run.startswith(f"{name}-") for run in runs)

        if not any(map(is_affected, (*found, *groups))):
            return
        gone, present = gathered(self.workspace.each, self.deleted.names, lambda: self.bucket.children("runs/"))
        empty: list[str] = []
        for group in filter(is_affected, groups):
            seats = {seat.run for seat in Groups(self.workspace).seats(group)}
            if seats and seats <= gone:
                empty.append(group)
        for sweep in filter(is_affected, found):
            if not any(run.startswith(f"{sweep}-") and run not in gone for run in present):
                empty.append(sweep)
        self.deleted.retire(empty)
        for name in empty:
            prefixes = (f"groups/{name}/", f"sweeps/{name}/", f"runs/{name}/")
            self._delete_keys([entry.key for prefix in prefixes for entry in self.bucket.list(prefix)])

    def _delete_keys(self, keys: Sequence[str]) -> None:
        batches = [keys[begin : begin + BATCH] for begin in range(0, len(keys), BATCH)]
        self.workspace.each(self.bucket.delete_many, batches)


def _stays(key: str) -> bool:
    """Return whether an object of a run stays when its outputs are kept."""
    return key.partition("/")[2].partition("/")[2].startswith(_KEPT)
