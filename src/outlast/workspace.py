"""A workspace: the only memory. Names of things in it, runs and how they are found; refuses to decide anything."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence

import msgspec

from outlast.clouds.traits import DEFAULT_CLOUD
from outlast.code.record import CodeRecord
from outlast.errors import Damaged, Exists, Missing, NoSuchRun
from outlast.runs.numbering import keep_hint, next_number
from outlast.runs.snapshot import GAP
from outlast.runs.story import Story, event_key
from outlast.spec.spec import Spec
from outlast.store.bucket import Bucket, Entry, open_bucket
from outlast.store.codec import HINT, decoded
from outlast.store.parallel import ParallelMap, suited_to
from outlast.store.traits import StoreTraits, traits_of_store

DEFAULT = "~/.outlast/workspace"
# With the attempt and the workspace it is the name of a machine, which clouds let have 63 characters.
_RUN = re.compile(r"[a-z][a-z0-9-]{0,59}")
_BEGINNING = re.compile(r"[a-z0-9-]*")
# How many runs a message names.
_SHOWN = 8


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`spec.json`: what was asked, with the code it was asked with. Written once."""

    run: str
    spec: Spec
    code: CodeRecord
    who: str = ""
    submitted_at: float = 0.0
    version: str = ""
    # Where the submitter's programs are; used on the local cloud alone, whose base image is the submitter's computer.
    path: str = ""


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """Heartbeat of a run. A hint, never truth."""

    attempt: int = 0
    phase: str = ""
    step: int | None = None
    length: int = 0
    note: str = ""
    # What it alone has, if it was asked for as exclusive.
    holds: str = ""
    # Why no checkpoint was committed for minutes although the folder changes; empty if that is not so.
    unsaved: str = ""


class _Identity(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    format: int = 1


class Workspace:
    """The objects of one workspace, by name. Holds no state but its own identity."""

    def __init__(
        self,
        bucket: Bucket,
        *,
        clock: Callable[[], float] = time.time,
        ids: Callable[[], str] = lambda: os.urandom(8).hex(),
        each: ParallelMap | None = None,
        snapshot_gap: int = GAP,
    ) -> None:
        self.bucket = bucket
        # How many objects are read: in parallel, unless a simulation owns the time.
        self.each = each or suited_to(bucket.url)
        self.snapshot_gap = snapshot_gap
        self.clock = clock
        self.ids = ids
        self._id = ""

    @property
    def url(self) -> str:
        return self.bucket.url

    @property
    def store(self) -> StoreTraits:
        return traits_of_store(self.bucket.url)

    @property
    def id(self) -> str:
        """Who this workspace is, whatever address it is reached by; machines carry it as a label."""
        if not self._id:
            try:
                body = self.bucket.get("workspace.json")
            except Missing:
                body = self._introduce()
            self._id = decoded(body, _Identity, "workspace.json").id
        return self._id

    def _introduce(self) -> bytes:
        try:
            self.bucket.create("workspace.json", msgspec.json.encode(_Identity(id=self.ids()[:8])))
        except Exists:
            pass  # a teammate was first, and it is the same workspace
        return self.bucket.get("workspace.json")

    def machine_name(self, run: str, attempt: int) -> str:
        """Derived, never drawn: a repeated launch collides with the first and never doubles it."""
        return f"{run}-a{attempt}-{self.id[:6]}"

    def remember_cloud(self, cloud: str) -> None:
        """From now on whoever supervises looks for machines there, too."""
        if cloud == DEFAULT_CLOUD:
            return  # it is always enabled
        try:
            self.bucket.create(f"clouds/{cloud}", b"")
        except Exists:
            pass

    def clouds(self) -> list[str]:
        """The clouds besides this computer's own that runs or machines of this workspace were ever asked of."""
        return [entry.key.rpartition("/")[2] for entry in self.bucket.list("clouds/")]

    def secrets_name(self, run: str) -> str:
        return f"outlast-{self.id}-{run}"

    # Runs

    def reserve(
        self, spec: Spec, code: CodeRecord, *, who: str, version: str, path: str = "", run: str = ""
    ) -> RunRequest:
        """Write the request under the next free number of its name: `census-7`. Under a name that is given (`run`) it
        is written once, and what was there before is what counts."""
        draft = RunRequest(
            run=run, spec=spec, code=code, who=who, submitted_at=self.clock(), version=version, path=path
        )
        number = 0 if run else self.next_number(spec.name)
        while True:
            try:
                request = self.write_request(msgspec.structs.replace(draft, run=run or f"{spec.name}-{number}"))
            except Exists:
                if run:
                    return self.request(run)
                number += 1
                continue
            if not run:
                keep_hint(self.bucket, spec.name, number)
            return request

    def write_request(self, request: RunRequest) -> RunRequest:
        """Write a request under its own name. Raises Exists."""
        self.bucket.create(f"runs/{request.run}/spec.json", msgspec.json.encode(request))
        return request

    def next_number(self, name: str) -> int:
        """The first number after all that runs and groups of that name have; a group is a name among the runs, too."""
        return next_number(self.bucket, name)

    def request(self, run: str) -> RunRequest:
        """What was asked. Raises NoSuchRun, and Damaged for what no machine could be named after."""
        try:
            body = self.bucket.get(f"runs/{run}/spec.json")
        except Missing as problem:
            raise NoSuchRun(f"no run `{run}` in {self.url}", hint="see `outlast ps --all`") from problem
        request = decoded(body, RunRequest, f"runs/{run}/spec.json")
        if request.run != run or not _RUN.fullmatch(run):
            raise Damaged(f"runs/{run}/spec.json is not the request of a run of that name", hint=HINT)
        return request

    def story(self, run: str) -> Story:
        return Story(self.bucket, run, each=self.each, gap=self.snapshot_gap)

    def runs(self) -> Sequence[str]:
        """Every run there ever was, oldest number first within a name. Lists all of them: see `EndedRuns`."""
        return sorted(self.bucket.children("runs/"), key=natural)

    def find(self, text: str) -> str:
        """The run that is meant by a name, an unambiguous prefix, or `last`."""
        if text == "last":
            return self._newest()
        if _RUN.fullmatch(text) and self._has_story(text):
            return text
        fits = self._beginning_with(text, _SHOWN + 1)
        if text in fits or len(fits) == 1:
            return self._submitted(text if text in fits else fits[0])
        if not fits:
            raise NoSuchRun(f"no run `{text}` in {self.url}", hint="see `outlast ps --all`")
        count = f"more than {_SHOWN}" if len(fits) > _SHOWN else str(len(fits))
        raise NoSuchRun(f"`{text}` fits {count} runs: {', '.join(fits[:_SHOWN])}", hint="write more of the name")

    def _beginning_with(self, text: str, limit: int) -> list[str]:
        """The first runs whose names begin like this; a call for each, and not one for every thousand runs."""
        if not self.store.remote:
            return [run for run in self.runs() if run.startswith(text)][:limit]
        found: list[str] = []
        after = f"runs/{text}"
        while _BEGINNING.fullmatch(text) and len(found) < limit:
            key = next((entry.key for entry in self.bucket.list("runs/", after=after, limit=1)), "")
            run = key.removeprefix("runs/").partition("/")[0]
            if not key or not run.startswith(text):
                break
            found.append(run)
            after = f"runs/{run}0"  # `0` is the character after `/`: after all objects of this run
        return sorted(found, key=natural)

    def _has_story(self, run: str) -> bool:
        try:
            self.bucket.head(event_key(run, 1))
        except Missing:
            return False
        return True

    def _submitted(self, run: str) -> str:
        """The run, if it came to be: one whose submit was cut short has a request and no story."""
        if self._has_story(run):
            return run
        if any(True for _ in self.bucket.list(f"groups/{run}/", limit=1)):
            hint = f"name one of its runs: `{run}-TASK`; `outlast ps --all` lists them"
            raise NoSuchRun(f"`{run}` is a group", hint=hint)
        raise NoSuchRun(f"`{run}` was never submitted: whoever asked for it was cut short")

    def _newest(self) -> str:
        """The run that was submitted last, by the store's clock, of the live ones and the newest of the others."""
        from outlast.runs.ended import EndedRuns

        def first_event(run: str) -> Entry | None:
            try:
                return self.bucket.head(event_key(run, 1))
            except Missing:
                return None

        live = {*self.heartbeats(), *self.wakeups()}
        runs = {*live, *EndedRuns(self, each=self.each).submitted_last(_SHOWN)}
        heads = [entry for entry in self.each(first_event, sorted(runs)) if entry is not None]
        if not heads:
            raise NoSuchRun(f"there is no run in {self.url} yet", hint="start one with `outlast run`")
        return max(heads, key=lambda e: (e.modified_at, natural(e.key))).key.split("/")[1]

    # Heartbeats and wakeups

    def write_heartbeat(self, run: str, heartbeat: Heartbeat, *, durable: bool = False) -> Entry:
        """Overwrite the heartbeat of a run; the answer carries the store's time. The first one must be durable: a power cut
        that took it would take the run off the list of live runs."""
        return self.bucket.put(f"heartbeats/{run}", msgspec.json.encode(heartbeat), durable=durable)

    def heartbeat(self, run: str) -> Heartbeat | None:
        try:
            return decoded(self.bucket.get(f"heartbeats/{run}"), Heartbeat, f"heartbeats/{run}")
        except (Missing, Damaged):
            return None  # a hint that cannot be read is no hint

    def heartbeats(self) -> dict[str, Entry]:
        """One listing: when each live run was last heard of, by the store's clock."""
        return {entry.key.removeprefix("heartbeats/"): entry for entry in self.bucket.list("heartbeats/")}

    def wake(self, run: str, *, durable: bool = False) -> None:
        """Ask whoever supervises to look at this run now. Each ring is an object of its own: none can be lost to the
        removal of an earlier one. A run that no supervisor has seen needs a durable one: nothing else leads to it."""
        self.bucket.put(f"wakeups/{run}/{self.ids()}", b"", durable=durable)

    def wakeups(self) -> dict[str, list[Entry]]:
        """One listing: the rings that nobody has answered yet, by run."""
        rung: dict[str, list[Entry]] = {}
        for entry in self.bucket.list("wakeups/"):
            rung.setdefault(entry.key.split("/")[1], []).append(entry)
        return rung


def natural(text: str) -> list[tuple[int, int | str]]:
    """A key by which `run-2` sorts before `run-10`."""
    return [(0, int(p)) if p.isdigit() else (1, p) for p in re.split(r"(\d+)", text) if p]


def open_workspace(url: str = "") -> Workspace:
    """The workspace at a URL, else what OUTLAST_WORKSPACE says, else the default below the home directory."""
    return Workspace(open_bucket(url or os.environ.get("OUTLAST_WORKSPACE", "") or DEFAULT))
