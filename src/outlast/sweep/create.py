"""The creation of sweeps: validate, store the code once, write the record, then append `Opened`."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

import msgspec

import outlast
from outlast.clouds.cloud import Cloud
from outlast.errors import SpecError
from outlast.spec.spec import Spec
from outlast.spec.sweep import grid_size
from outlast.store.shared import check_references
from outlast.submit.prepare import program_path, store_code
from outlast.submit.validate import validate
from outlast.sweep import events as ev
from outlast.sweep.record import Sweep, SweepStory, reserve
from outlast.sweep.study import load_optuna
from outlast.sweep.trial import with_flags
from outlast.user import current_user
from outlast.workspace import Workspace

_TRIALS = 20


def check_search(spec: Spec, *, source: str) -> None:
    """Check the fields that a sweep requires. Raises SpecError with all problems."""
    search = spec.sweep
    problems = []
    if search is None or not search.params:
        problems.append("[sweep.params]: missing: set the parameters to search, e.g. `--param lr=log(1e-4..1e-1)`")
    if search is None or not search.goals:
        problems.append("[sweep] goal: missing: set a metric to optimize, e.g. `--goal min:loss`")
    if search is not None and search.per_machine > 1 and spec.machine.nodes > 1:
        problems.append("[sweep] per_machine: cannot be combined with `[machine] nodes`")
    if search is not None and search.per_machine > 1 and spec.machine.container:
        problems.append("[sweep] per_machine: cannot be combined with `[machine] container` yet")
    if search is not None and search.per_machine > 1 and (spec.checkpoint.names or spec.checkpoint.path == "."):
        problems.append(
            "[checkpoint] path: expected a folder other than `.`, because trials share a machine (`per_machine`)"
        )
    if spec.interactive:
        problems.append("interactive: not supported in a sweep, whose trials have no terminal")
    if problems:
        raise SpecError(problems, source=source, hint="see docs/sweeps.md")


def create_sweep(
    workspace: Workspace,
    clouds: Mapping[str, Cloud],
    spec: Spec,
    *,
    environment: Mapping[str, str],
    source: str,
    report: Callable[[str], None] = lambda _: None,
) -> Sweep:
    """Create the sweep. Nothing runs yet: a driver submits the trials."""
    check_search(spec, source=source)
    load_optuna()
    assert spec.sweep is not None
    size = grid_size(spec.sweep.params) if spec.sweep.sampler == "grid" else 0
    trials = min(spec.sweep.trials or size, size) if size else spec.sweep.trials or _TRIALS
    spec = with_flags(msgspec.structs.replace(spec, sweep=msgspec.structs.replace(spec.sweep, trials=trials)))
    # Messages about each trial would drown those about other runs.
    spec = msgspec.structs.replace(spec, notify=None)
    spec = validate(workspace, clouds, spec, environment=environment, source=source)
    code, path = store_code(workspace, spec, report), program_path(environment)
    sweep = reserve(workspace, spec, code, who=current_user(), version=outlast.__version__, path=path)
    check_references(workspace.bucket, code.shared_keys, each=workspace.each)
    SweepStory(workspace.bucket, sweep.name).append_or_raise(
        ev.Opened(who=sweep.who, trials=trials, at=workspace.clock(), by=sweep.who), nonce=secrets.token_hex(8)
    )
    return sweep


def extend(workspace: Workspace, sweep: Sweep, more: int) -> bool:
    """Add `more` trials; with 0 only resume a stopped sweep. Return False if that changes nothing."""
    state = SweepStory(workspace.bucket, sweep.name).refresh()
    size = grid_size(sweep.search.params) if sweep.search.sampler == "grid" else 0
    if size and state.wanted + more > size:
        raise SpecError([f"--trials: expected at most {size - state.wanted} more: the grid has {size} points"])
    who = current_user()
    event = ev.Extended(who=who, more=more, at=workspace.clock(), by=who)
    return SweepStory(workspace.bucket, sweep.name).append(event, nonce=secrets.token_hex(8))


def stop_sweep(workspace: Workspace, sweep: Sweep, *, now: bool) -> bool:
    """Stop the sweep; with `now` also cancel its running trials. Return False if it is already stopped."""
    who = current_user()
    event = ev.SweepStopped(who=who, why=f"stopped by {who}", now=now, at=workspace.clock(), by=who)
    return SweepStory(workspace.bucket, sweep.name).append(event, nonce=secrets.token_hex(8))
