"""A workspace: the only memory. Names of things in it, runs and how they are found; refuses to decide anything."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence

import msgspec

from outlast.errors import Damaged, Exists, Missing, NoSuchRun
from outlast.spec.spec import Spec
from outlast.workspace.bucket import Bucket, Entry, open_bucket
from outlast.workspace.codec import HINT, decoded
from outlast.workspace.record import CodeRecord
from outlast.workspace.story import Story, event_key

DEFAULT = "~/.outlast/workspace"
# With the attempt and the workspace it is the name of a machine, which clouds let have 63 characters.
_RUN = re.compile(r"[a-z][a-z0-9-]{0,59}")


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """`spec.json`: what was asked, with the code it was asked with. Written once."""

    run: str
    spec: Spec
    code: CodeRecord
    who: str = ""
    submitted_at: float = 0.0
    version: str = ""
    # Where the submitter's programs are; used on the local cloud alone, whose base image is the submitter's computer.
    path: str = ""


class Pulse(msgspec.Struct, frozen=True, kw_only=True):
    """Heartbeat of a run. A hint, never truth."""

    attempt: int = 0
    phase: str = ""
    step: int | None = None
    length: int = 0
    note: str = ""
    # What it alone has, if it was asked for as exclusive.
    holds: str = ""


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
    ) -> None:
        self.bucket = bucket
        self.clock = clock
        self.ids = ids
        self._id = ""

    @property
    def url(self) -> str:
        return self.bucket.url

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
    ) -> Request:
        """Write the request under the next free number of its name: `census-7`. Under a name that is given (`run`) it
        is written once, and what was there before is what counts."""
        draft = Request(run=run, spec=spec, code=code, who=who, submitted_at=self.clock(), version=version, path=path)
        number = 0 if run else self.next_number(spec.name)
        while True:
            try:
                return self.enlist(msgspec.structs.replace(draft, run=run or f"{spec.name}-{number}"))
            except Exists:
                if run:
                    return self.request(run)
                number += 1

    def enlist(self, request: Request) -> Request:
        """Write a request under its own name. Raises Exists."""
        self.bucket.create(f"runs/{request.run}/spec.json", msgspec.json.encode(request))
        return request

    def next_number(self, name: str) -> int:
        """The first number after all that runs and groups of that name have; a group is a name among the runs, too."""
        pattern = re.compile(rf"^{re.escape(name)}-(\d+)$")
        taken = [int(m.group(1)) for child in self.bucket.children("runs/") if (m := pattern.match(child))]
        return max(taken, default=0) + 1

    def request(self, run: str) -> Request:
        """What was asked. Raises NoSuchRun, and Damaged for what no machine could be named after."""
        try:
            body = self.bucket.get(f"runs/{run}/spec.json")
        except Missing as problem:
            raise NoSuchRun(f"no run `{run}` in {self.url}", hint="see `outlast ps --all`") from problem
        request = decoded(body, Request, f"runs/{run}/spec.json")
        if request.run != run or not _RUN.fullmatch(run):
            raise Damaged(f"runs/{run}/spec.json is not the request of a run of that name", hint=HINT)
        return request

    def story(self, run: str) -> Story:
        return Story(self.bucket, run)

    def runs(self) -> Sequence[str]:
        """Every run there ever was, oldest number first within a name."""
        return sorted(self.bucket.children("runs/"), key=_natural)

    def find(self, text: str) -> str:
        """The run that is meant by a name, an unambiguous prefix, or `last`."""
        runs = self.runs()
        if text in runs:
            return self._submitted(text)
        if text == "last":
            return self._newest(runs)
        fits = [run for run in runs if run.startswith(text)]
        if len(fits) == 1:
            return self._submitted(fits[0])
        if not fits:
            raise NoSuchRun(f"no run `{text}` in {self.url}", hint="see `outlast ps --all`")
        raise NoSuchRun(f"`{text}` fits {len(fits)} runs: {', '.join(fits[:8])}", hint="write more of the name")

    def _submitted(self, run: str) -> str:
        """The run, if it came to be: one whose submit was cut short has a request and no story."""
        try:
            self.bucket.head(event_key(run, 1))
        except Missing as problem:
            if run in self.bucket.children("groups/"):
                hint = f"name one of its runs: `{run}-TASK`; `outlast ps --all` lists them"
                raise NoSuchRun(f"`{run}` is a group", hint=hint) from problem
            raise NoSuchRun(f"`{run}` was never submitted: whoever asked for it was cut short") from problem
        return run

    def _newest(self, runs: Sequence[str]) -> str:
        heads: list[Entry] = []
        for run in runs:
            try:
                heads.append(self.bucket.head(event_key(run, 1)))
            except Missing:
                continue
        if not heads:
            raise NoSuchRun(f"there is no run in {self.url} yet", hint="start one with `outlast run`")
        return max(heads, key=lambda e: (e.modified_at, _natural(e.key))).key.split("/")[1]

    # Pulses and bells

    def beat(self, run: str, pulse: Pulse) -> Entry:
        """Overwrite the pulse of a run; the answer carries the store's time."""
        return self.bucket.put(f"pulse/{run}", msgspec.json.encode(pulse))

    def pulse(self, run: str) -> Pulse | None:
        try:
            return decoded(self.bucket.get(f"pulse/{run}"), Pulse, f"pulse/{run}")
        except (Missing, Damaged):
            return None  # a hint that cannot be read is no hint

    def pulses(self) -> dict[str, Entry]:
        """One listing: when each live run was last heard of, by the store's clock."""
        return {entry.key.removeprefix("pulse/"): entry for entry in self.bucket.list("pulse/")}

    def ring(self, run: str) -> None:
        """Ask whoever supervises to look at this run now. Each ring is an object of its own: none can be lost to the
        removal of an earlier one."""
        self.bucket.put(f"bell/{run}/{self.ids()}", b"")

    def bells(self) -> dict[str, list[Entry]]:
        """One listing: the rings that nobody has answered yet, by run."""
        rung: dict[str, list[Entry]] = {}
        for entry in self.bucket.list("bell/"):
            rung.setdefault(entry.key.split("/")[1], []).append(entry)
        return rung


def _natural(text: str) -> list[tuple[int, int | str]]:
    return [(0, int(p)) if p.isdigit() else (1, p) for p in re.split(r"(\d+)", text) if p]


def open_workspace(url: str = "") -> Workspace:
    """The workspace at a URL, else what OUTLAST_WORKSPACE says, else the default below the home directory."""
    return Workspace(open_bucket(url or os.environ.get("OUTLAST_WORKSPACE", "") or DEFAULT))
