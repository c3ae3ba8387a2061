"""The sweeps of a workspace: names, records and stories."""

from __future__ import annotations

import re

import msgspec

from outlast.code.record import CodeRecord
from outlast.errors import Exists, Missing, NoSuchRun
from outlast.runs.deleted import used_up_to
from outlast.runs.story import Log
from outlast.spec.spec import Spec, SweepSpec
from outlast.store.bucket import Bucket
from outlast.store.codec import decoded
from outlast.sweep import events as ev
from outlast.sweep.events import Event
from outlast.sweep.state import SweepState, step, why_illegal
from outlast.workspace import Workspace


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """`sweep.json`: the code, and the spec that all trials share. `spec.sweep` has the search space."""

    name: str
    spec: Spec
    code: CodeRecord
    who: str = ""
    opened_at: float = 0.0
    version: str = ""
    path: str = ""

    @property
    def search(self) -> SweepSpec:
        return self.spec.sweep or SweepSpec()

    @property
    def packed(self) -> bool:
        """Whether workers execute the trials, several on a machine."""
        return self.search.per_machine > 1

    def run_of(self, trial: int) -> str:
        """Return the name of a trial's run. It is derived, so that submitting twice creates one run."""
        return f"{self.name}-t{trial}"

    def worker(self, number: int) -> str:
        return f"{self.name}-w{number}"


class SweepStory(Log[Event, SweepState]):
    """The story of one sweep."""

    def __init__(self, bucket: Bucket, name: str) -> None:
        super().__init__(bucket, name, prefix=f"sweeps/{name}/story/", empty=SweepState())

    def decode(self, body: bytes) -> Event:
        return ev.decode(body)

    def encode(self, event: Event) -> bytes:
        return ev.encode(event)

    def step(self, state: SweepState, event: Event) -> SweepState:
        return step(state, event)

    def why_illegal(self, state: SweepState, event: Event) -> str:
        return why_illegal(state, event)


def reserve(workspace: Workspace, spec: Spec, code: CodeRecord, *, who: str, version: str, path: str) -> Sweep:
    """Write the record under the next free number of its name: `census-s2`."""
    pattern = re.compile(rf"^{re.escape(spec.name)}-s(\d+)$")
    taken = [int(m.group(1)) for name in sweeps(workspace) if (m := pattern.match(name))]
    number = max(max(taken, default=0), used_up_to(workspace.bucket, f"{spec.name}-s")) + 1
    while True:
        sweep = Sweep(
            name=f"{spec.name}-s{number}",
            spec=spec,
            code=code,
            who=who,
            opened_at=workspace.clock(),
            version=version,
            path=path,
        )
        try:
            workspace.bucket.create(f"sweeps/{sweep.name}/sweep.json", msgspec.json.encode(sweep))
        except Exists:
            number += 1
            continue
        return sweep


def sweeps(workspace: Workspace) -> list[str]:
    return list(workspace.bucket.children("sweeps/"))


def read(workspace: Workspace, name: str) -> Sweep:
    """Return the record of a sweep. Raises NoSuchRun."""
    key = f"sweeps/{name}/sweep.json"
    try:
        return decoded(workspace.bucket.get(key), Sweep, key)
    except Missing as problem:
        raise NoSuchRun(f"no sweep `{name}` in {workspace.url}", hint="see `outlast sweep list`") from problem


def find(workspace: Workspace, text: str) -> Sweep:
    """Return the sweep with a name or unambiguous prefix, or the `last` one. Raises NoSuchRun."""
    names = sweeps(workspace)
    if text == "last" and names:
        found = [read(workspace, name) for name in names]
        return max(found, key=lambda sweep: sweep.opened_at)
    matches = [text] if text in names else [name for name in names if name.startswith(text)]
    if len(matches) > 1:
        raise NoSuchRun(f"`{text}` matches {len(matches)} sweeps: {', '.join(matches[:8])}", hint="use a longer prefix")
    return read(workspace, matches[0] if matches else text)
