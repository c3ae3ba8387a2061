"""Asking for a sweep: check all that can be checked, store the code once, write what was asked, then say `Opened`."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

import msgspec

import outlast
from outlast.clouds.cloud import Cloud
from outlast.errors import SpecError
from outlast.spec.spec import Spec
from outlast.spec.sweep import grid_size
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
    """What makes a sweep out of a spec. Raises SpecError with everything that is wrong."""
    search = spec.sweep
    problems = []
    if search is None or not search.params:
        problems.append("[sweep.params]: what is to be searched? Say `--param lr=log(1e-4..1e-1)`")
    if search is None or not search.goals:
        problems.append("[sweep] goal: what is sought? Say `--goal min:loss`, with the name of a metric")
    if search is not None and search.per_machine > 1 and spec.machine.container:
        problems.append("[sweep] per_machine: several trials on a machine cannot be in a container yet")
    if search is not None and search.per_machine > 1 and (spec.checkpoint.names or spec.checkpoint.path == "."):
        problems.append(
            "[checkpoint] path: where trials share a machine each needs a folder for it, no file and not `.`"
        )
    if spec.interactive:
        problems.append("interactive: nobody can sit at the terminals of many trials")
    if problems:
        raise SpecError(problems, source=source, hint="see docs/sweeps.md")


def open_sweep(
    workspace: Workspace,
    clouds: Mapping[str, Cloud],
    spec: Spec,
    *,
    environment: Mapping[str, str],
    source: str,
    report: Callable[[str], None] = lambda _: None,
) -> Sweep:
    """The sweep, asked for. Nothing runs yet: whoever drives it submits the trials."""
    check_search(spec, source=source)
    load_optuna()
    assert spec.sweep is not None
    size = grid_size(spec.sweep.params) if spec.sweep.sampler == "grid" else 0
    trials = min(spec.sweep.trials or size, size) if size else spec.sweep.trials or _TRIALS
    spec = with_flags(msgspec.structs.replace(spec, sweep=msgspec.structs.replace(spec.sweep, trials=trials)))
    spec = validate(workspace, clouds, spec, environment=environment, source=source)
    code, path = store_code(workspace, spec, report), program_path(environment)
    made = reserve(workspace, spec, code, who=current_user(), version=outlast.__version__, path=path)
    SweepStory(workspace.bucket, made.name).append_or_raise(
        ev.Opened(who=made.who, trials=trials, at=workspace.clock(), by=made.who), nonce=secrets.token_hex(8)
    )
    return made


def extend(workspace: Workspace, sweep: Sweep, more: int) -> bool:
    """So many trials more; with 0 one that was halted goes on. False if that changes nothing."""
    state = SweepStory(workspace.bucket, sweep.name).refresh()
    size = grid_size(sweep.search.params) if sweep.search.sampler == "grid" else 0
    if size and state.wanted + more > size:
        raise SpecError([f"--trials: the grid has {size} points, and {state.wanted} of them are wanted already"])
    who = current_user()
    event = ev.Extended(who=who, more=more, at=workspace.clock(), by=who)
    return SweepStory(workspace.bucket, sweep.name).append(event, nonce=secrets.token_hex(8))


def halt(workspace: Workspace, sweep: Sweep, *, now: bool) -> bool:
    """No more trials. False if that was said before."""
    who = current_user()
    event = ev.SweepStopped(who=who, why=f"stopped by {who}", now=now, at=workspace.clock(), by=who)
    return SweepStory(workspace.bucket, sweep.name).append(event, nonce=secrets.token_hex(8))
