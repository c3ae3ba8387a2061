"""Asking for a run once more, as it was recorded: the same spec, the same code. Says what can no longer be had."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from outlast.clouds.cloud import Cloud
from outlast.errors import Missing, OutlastError, SpecError
from outlast.spec.spec import CodeSpec, Spec
from outlast.supervisor.submit import ask, check, check_purse
from outlast.workspace.bundle import code_key
from outlast.workspace.record import CodeRecord
from outlast.workspace.workspace import Request, Workspace


def gone(
    workspace: Workspace, clouds: Mapping[str, Cloud], spec: Spec, code: CodeRecord, environment: Mapping[str, str]
) -> list[str]:
    """A sentence for each thing that the run had and that is not to be had any more."""
    problems = []
    if code.kind == "bundle":
        try:
            workspace.bucket.head(code_key(code.sha256))
        except Missing:
            problems.append(f"its code, {code_key(code.sha256)}, is not in the workspace any more")
    try:
        check(_with_stored_code(spec), clouds, environment, source="", now=workspace.clock())
    except SpecError as problem:
        problems += problem.problems
    return problems


def again(
    workspace: Workspace,
    clouds: Mapping[str, Cloud],
    spec: Spec,
    code: CodeRecord,
    *,
    what: str,
    environment: Mapping[str, str],
) -> Request:
    """A new run of that spec and that code. Raises OutlastError with everything that is missing."""
    problems = gone(workspace, clouds, spec, code, environment)
    if problems:
        told = "\n".join(f"  - {problem}" for problem in problems)
        raise OutlastError(f"{what} cannot be run as it was:\n{told}", hint="nothing was launched")
    check_purse(workspace, clouds[spec.machine.cloud], spec)
    return ask(workspace, clouds, spec, code, environment=environment)


def _with_stored_code(spec: Spec) -> Spec:
    """Its code is in the workspace, or at a commit: the folder that it once came from need not be there."""
    return msgspec.structs.replace(spec, code=CodeSpec(git=spec.code.git or "stored", ref=spec.code.ref))
