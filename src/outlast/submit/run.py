"""Submission of one run, new or again. Supervisors of the workspace launch it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from outlast.clouds.cloud import Cloud
from outlast.code.record import CodeRecord
from outlast.errors import OutlastError
from outlast.spec.spec import Spec
from outlast.submit.earlier import with_measured_work
from outlast.submit.prepare import prepare, store_code
from outlast.submit.validate import check_spending_limits, problems_of_stored, validate
from outlast.submit.write import write_run
from outlast.workspace import RunRequest, Workspace


def submit(
    workspace: Workspace,
    clouds: Mapping[str, Cloud],
    spec: Spec,
    *,
    environment: Mapping[str, str],
    source: str = "outlast.toml",
    report: Callable[[str], None] = lambda _: None,
) -> RunRequest:
    """Validate, prepare and write a run. Raises SpecError with all problems."""
    spec = validate(workspace, clouds, spec, environment=environment, source=source)
    spec = with_measured_work(workspace, spec, report)
    code = store_code(workspace, spec, report)
    return write_run(workspace, clouds, prepare(workspace, clouds, spec, code, environment=environment, report=report))


def resubmit(
    workspace: Workspace,
    clouds: Mapping[str, Cloud],
    spec: Spec,
    code: CodeRecord,
    *,
    what: str,
    environment: Mapping[str, str],
) -> RunRequest:
    """Submit a recorded spec again, with the code that was stored for it. Raises OutlastError with all problems."""
    problems = problems_of_stored(workspace, clouds, spec, code, environment)
    if problems:
        lines = "\n".join(f"  - {problem}" for problem in problems)
        raise OutlastError(f"{what} cannot be submitted again:\n{lines}", hint="nothing was launched")
    check_spending_limits(workspace, clouds[spec.machine.cloud], spec)
    return write_run(workspace, clouds, prepare(workspace, clouds, spec, code, environment=environment))
