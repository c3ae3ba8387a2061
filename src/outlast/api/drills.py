"""`outlast.drill`: would this training survive? A drill from a program, such as a test or a CI job."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from outlast.api.space import Space, warn
from outlast.app.drilling import DrillOptions, DrillResult, run_drill
from outlast.app.project import find_workspace
from outlast.app.submission import project_of, spec_of_fields
from outlast.errors import UsageError
from outlast.spec.duration import duration_s

if TYPE_CHECKING:
    from typing import Unpack

    from outlast.api.fields import Path, RunFields

Duration = str | int | float


def drill(
    command: str | Sequence[str] | None = None,
    *,
    file: Path = "",
    workspace: Path | Space = "",
    preemptions: int = 3,
    notice: bool = True,
    compare: bool = False,
    tolerance: float = 1e-6,
    mean_life: Duration = "2h",
    grace: Duration = "30s",
    wait: Duration = "60s",
    **fields: Unpack[RunFields],
) -> DrillResult:
    """Preempt a training on purpose on the local cloud, and return what survives; takes minutes.

    The command and its fields are those of `outlast.submit`, the other arguments the options of `outlast drill`.
    `result.report.passed` is the verdict, `result.report.findings` has the reasons. Raises DrillFailed if the training
    fails without any preemption.
    """
    options = DrillOptions(
        preemptions=preemptions,
        notice=notice,
        compare=compare,
        tolerance=tolerance,
        mean_life_s=_seconds("mean_life", mean_life),
        grace_s=_seconds("grace", grace),
        wait_s=_seconds("wait", wait),
    )
    project = project_of(os.fspath(file))
    space = workspace if isinstance(workspace, Space) else Space(find_workspace(os.fspath(workspace), project))
    spec = spec_of_fields(command, fields, project=project, report=warn)
    return run_drill(space._workspace, spec, options, source=project.source, log=warn)


def _seconds(name: str, value: Any) -> float:
    try:
        return duration_s(value)
    except ValueError as problem:
        raise UsageError(f"{name}: {problem}", hint='write it like "2m"') from problem
