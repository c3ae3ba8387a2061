"""The workspace: the store of everything that outlast remembers, with its runs, heartbeats and wakeups.

`outlast.workspace` is this module, and also the function of the public API.
"""

from __future__ import annotations

import os
import re
import sys
import time
import types
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

import outlast
from outlast.clouds.traits import DEFAULT_CLOUD
from outlast.code.record import CodeRecord
from outlast.errors import Damaged, Exists, Missing, NoSuchRun
from outlast.runs.events import MetricRange
from outlast.runs.numbering import keep_hint, next_number
from outlast.runs.snapshot import GAP
from outlast.runs.story import Story, event_key
from outlast.runs.usage import Sample
from outlast.spec.spec import Spec
from outlast.store import wake_file
from outlast.store.bucket import Bucket, Entry, open_bucket
from outlast.store.codec import HINT, decoded
from outlast.store.parallel import ParallelMap, suited_to
from outlast.store.traits import StoreTraits, traits_of_store

DEFAULT = "~/.outlast/workspace"
# Machine names add the attempt and the workspace, and clouds allow 63 characters.
_RUN = re.compile(r"[a-z][a-z0-9-]{0,59}")
_PREFIX = re.compile(r"[a-z0-9-]*")
# The number of runs in a message.
_SHOWN = 8


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`spec.json`: the spec and the code of a run. Written once."""

    run: str
    spec: Spec
    code: CodeRecord
    who: str = ""
    submitted_at: float = 0.0
    version: str = ""
    # The submitter's PATH; used on the local cloud, whose base image is the submitter's computer.
    path: str = ""


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """Heartbeat of a run. Only a hint: the story is authoritative."""

    attempt: int = 0
    phase: str = ""
    step: int | None = None
    length: int = 0
    note: str = ""
    # The exclusive lock that it holds.
    holds: str = ""
    # Why no checkpoint was committed for minutes although the folder changes; empty otherwise.
    unsaved: str = ""
    # Of a distributed run: the machines that show signs of life.
    nodes: int = 0
    # The metrics of this attempt so far, and the newest sample of what it uses.
    metrics: dict[str, MetricRange] = {}
    usage: Sample | None = None


class _Identity(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    format: int = 1


class Workspace:
    """The objects of one workspace, by name. Its only state is its cached identity."""

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
        # How several objects are read: in parallel or serially.
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
        """The identity of the workspace, independent of its address; a label of its machines."""
        if not self._id:
            try:
                body = self.bucket.get("workspace.json")
            except Missing:
                body = self._create_identity()
            self._id = decoded(body, _Identity, "workspace.json").id
        return self._id

    def _create_identity(self) -> bytes:
        try:
            self.bucket.create("workspace.json", msgspec.json.encode(_Identity(id=self.ids()[:8])))
        except Exists:
            pass  # another process was first
        return self.bucket.get("workspace.json")

    def machine_name(self, run: str, attempt: int, node: int = 0) -> str:
        """Return the name of an attempt's machine. It is derived, so a repeated launch finds the first machine."""
        rank = f"-n{node}" if node else ""
        return f"{run}-a{attempt}{rank}-{self.id[:6]}"

    def remember_cloud(self, cloud: str) -> None:
        """Make supervisors list the machines of this cloud, too. May be repeated."""
        if cloud == DEFAULT_CLOUD:
            return  # it is always enabled
        try:
            self.bucket.create(f"clouds/{cloud}", b"")
        except Exists:
            pass

    def clouds(self) -> list[str]:
        """Return the remote clouds that this workspace has ever used."""
        return [entry.key.rpartition("/")[2] for entry in self.bucket.list("clouds/")]

    def secrets_name(self, run: str) -> str:
        return f"outlast-{self.id}-{run}"

    # Runs

    def reserve(
        self, spec: Spec, code: CodeRecord, *, who: str, version: str, path: str = "", run: str = ""
    ) -> RunRequest:
        """Write the request under the next free number of its name, such as `census-7`.

        Under a given name (`run`) it is written once; a repeated call returns the stored request.
        """
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
        """Write a request under its run's name. Raises Exists."""
        self.bucket.create(f"runs/{request.run}/spec.json", msgspec.json.encode(request))
        return request

    def next_number(self, name: str) -> int:
        """Return the first number after those of all runs and groups of that name."""
        return next_number(self.bucket, name)

    def request(self, run: str) -> RunRequest:
        """Return the request of a run. Raises NoSuchRun, and Damaged if its name is invalid or another run's."""
        try:
            body = self.bucket.get(f"runs/{run}/spec.json")
        except Missing as problem:
            raise NoSuchRun(f"no run `{run}` in {self.url}", hint="see `outlast ps --all`") from problem
        request = decoded(body, RunRequest, f"runs/{run}/spec.json")
        if request.run != run or not _RUN.fullmatch(run):
            raise Damaged(f"runs/{run}/spec.json is not the request of run `{run}`", hint=HINT)
        return request

    def story(self, run: str) -> Story:
        return Story(self.bucket, run, each=self.each, gap=self.snapshot_gap)

    def runs(self) -> Sequence[str]:
        """Return all runs ever submitted, sorted by name and number. It lists all of them; `EndedRuns` is faster."""
        return sorted(self.bucket.children("runs/"), key=natural)

    def find(self, text: str) -> str:
        """Return the run with this name or unambiguous prefix, or the `last` one. Raises NoSuchRun."""
        if text == "last":
            return self._newest()
        if _RUN.fullmatch(text) and self._has_story(text):
            return text
        matches = self._with_prefix(text, _SHOWN + 1)
        if text in matches or len(matches) == 1:
            return self._submitted(text if text in matches else matches[0])
        if not matches:
            raise NoSuchRun(f"no run `{text}` in {self.url}", hint="see `outlast ps --all`")
        count = f"more than {_SHOWN}" if len(matches) > _SHOWN else str(len(matches))
        raise NoSuchRun(f"`{text}` matches {count} runs: {', '.join(matches[:_SHOWN])}", hint="use a longer prefix")

    def _with_prefix(self, text: str, limit: int) -> list[str]:
        """Return the first runs with this prefix. In a bucket: one request per result, not one per thousand runs."""
        if not self.store.remote:
            return [run for run in self.runs() if run.startswith(text)][:limit]
        found: list[str] = []
        after = f"runs/{text}"
        while _PREFIX.fullmatch(text) and len(found) < limit:
            key = next((entry.key for entry in self.bucket.list("runs/", after=after, limit=1)), "")
            run = key.removeprefix("runs/").partition("/")[0]
            if not key or not run.startswith(text):
                break
            found.append(run)
            after = f"runs/{run}0"  # `0` follows `/`, so this skips all objects of the run
        return sorted(found, key=natural)

    def _has_story(self, run: str) -> bool:
        try:
            self.bucket.head(event_key(run, 1))
        except Missing:
            return False
        return True

    def _submitted(self, run: str) -> str:
        """Return the run if it has a story. Raises NoSuchRun if its submission was interrupted."""
        if self._has_story(run):
            return run
        if any(True for _ in self.bucket.list(f"groups/{run}/", limit=1)):
            hint = f"name one of its runs: `{run}-TASK`; `outlast ps --all` lists them"
            raise NoSuchRun(f"`{run}` is a group", hint=hint)
        raise NoSuchRun(f"`{run}` was never submitted: its submission was interrupted")

    def _newest(self) -> str:
        """Return the run that was submitted last, by the store's clock."""
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
            raise NoSuchRun(f"no runs in {self.url} yet", hint="start one with `outlast run`")
        return max(heads, key=lambda e: (e.modified_at, natural(e.key))).key.split("/")[1]

    # Heartbeats and wakeups

    def write_heartbeat(self, run: str, heartbeat: Heartbeat, *, durable: bool = False) -> None:
        """Write the heartbeat of a run.

        The first one must be durable: without it, a power cut would remove the run from the live runs.
        """
        self.bucket.put(f"heartbeats/{run}", msgspec.json.encode(heartbeat), durable=durable)

    def heartbeat(self, run: str) -> Heartbeat | None:
        try:
            return decoded(self.bucket.get(f"heartbeats/{run}"), Heartbeat, f"heartbeats/{run}")
        except (Missing, Damaged):
            return None  # ignore an unreadable hint

    def heartbeats(self) -> dict[str, Entry]:
        """Return the heartbeat of each live run, with its time by the store's clock. One listing."""
        return {entry.key.removeprefix("heartbeats/"): entry for entry in self.bucket.list("heartbeats/")}

    def wake(self, run: str, *, durable: bool = False) -> None:
        """Make supervisors read this run's story now.

        Each wakeup is a new object, so that deleting an earlier one loses none. It must be durable for a run that no
        supervisor has seen: nothing else leads to it.
        """
        self.bucket.put(f"wakeups/{run}/{self.ids()}", b"", durable=durable)
        self.hint_wakeup()

    def hint_wakeup(self) -> None:
        """Make supervisors on this computer list the wakeups now."""
        if self.store.network:
            wake_file.touch(self.url)

    def wakeups(self) -> dict[str, list[Entry]]:
        """Return the pending wakeups by run. One listing."""
        pending: dict[str, list[Entry]] = {}
        for entry in self.bucket.list("wakeups/"):
            pending.setdefault(entry.key.split("/")[1], []).append(entry)
        return pending


def natural(text: str) -> list[tuple[int, int | str]]:
    """Return a sort key by which `run-2` precedes `run-10`."""
    return [(0, int(p)) if p.isdigit() else (1, p) for p in re.split(r"(\d+)", text) if p]


def open_workspace(url: str = "") -> Workspace:
    """Open the workspace at a URL, else at OUTLAST_WORKSPACE, else the default below the home directory."""
    return Workspace(open_bucket(url or os.environ.get("OUTLAST_WORKSPACE", "") or DEFAULT))


class _Callable(types.ModuleType):
    """Makes this module callable."""

    def __call__(self, *args: Any, **fields: Any) -> Any:
        return outlast.load("workspace")(*args, **fields)


sys.modules[__name__].__class__ = _Callable
