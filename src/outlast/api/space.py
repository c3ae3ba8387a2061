"""`outlast.submit` and `outlast.workspace`: new runs, and the runs and costs of a workspace."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from outlast.api.run import Run
from outlast.app.project import find_workspace
from outlast.app.submission import project_of, submit_fields
from outlast.workspace import Workspace

if TYPE_CHECKING:
    from typing import Unpack

    from outlast.api.fields import Path, RunFields
    from outlast.app.comparison import Comparison
    from outlast.app.costs import CostSummary
    from outlast.app.types import PruneResult, WorkspaceUse


class Space:
    """A workspace: its runs and its costs. Created by `outlast.workspace()`."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def __repr__(self) -> str:
        return f"<outlast.Space {self.url}>"

    @property
    def url(self) -> str:
        return self._workspace.url

    def submit(
        self, command: str | Sequence[str] | None = None, *, file: Path = "", **fields: Unpack[RunFields]
    ) -> Run:
        """Submit a run to this workspace; see `outlast.submit`."""
        return submit(command, file=file, workspace=self, **fields)

    def run(self, name: str = "last") -> Run:
        """Return a run by its name, an unambiguous prefix of it, or `last`. Raises NoSuchRun."""
        return Run(self._workspace, self._workspace.find(name))

    def runs(self, *, state: str = "", user: str = "", limit: int = 100) -> list[Run]:
        """Return the live runs and the newest `limit` ended ones (0: all), by name.

        `state` is a status such as `running` or `failed`; `user` a name, or `me`.
        """
        from outlast.app.listing import list_rows
        from outlast.user import current_user

        who = current_user() if user == "me" else user
        rows = list_rows(self._workspace, everything=True, who=who, limit=limit).rows
        return [Run(self._workspace, str(row["run"])) for row in rows if state in ("", row["state"])]

    def cost(self, *, since: str = "", user: str = "") -> CostSummary:
        """Return the spending since a duration ago (`30d`) or a day (`2026-11-01`), in total and by day."""
        from outlast.app.costs import cost_summary

        return cost_summary(self._workspace, since=since, who=user)

    def delete(self, *runs: str | Run, outputs: str = "delete", dry_run: bool = False) -> PruneResult:
        """Delete ended runs with their checkpoints, logs and outputs (`outputs="keep"`: all but the outputs).

        Raises UsageError if one is live, before any is deleted. Their cost stays in the ledger.
        """
        from outlast.app.retention import delete_named, keeps

        return delete_named(self._workspace, names_of(runs), keep_outputs=keeps(outputs), dry_run=dry_run)

    def prune(
        self,
        older_than: str | int | float,
        *,
        keep_best: int = 0,
        metric: str = "",
        failed: bool = False,
        outputs: str = "delete",
        dry_run: bool = False,
    ) -> PruneResult:
        """Delete old runs, and code and packages that no run uses; the options are those of `outlast prune`."""
        from outlast.app.retention import prune, retention_rule

        rule = retention_rule(older_than, keep_best=keep_best, metric=metric, failed=failed, outputs=outputs)
        return prune(self._workspace, rule, dry_run=dry_run)

    def restore(self, path: Path) -> Run:
        """Store a run that `Run.archive` wrote to a file, under its own name, and return it."""
        from outlast.app.retention import restore_run

        return Run(self._workspace, restore_run(self._workspace, os.fspath(path)).run)

    def disk_use(self) -> WorkspaceUse:
        """Return what each run and each kind of object takes, in bytes and dollars a month."""
        from outlast.app.retention import disk_use

        return disk_use(self._workspace)

    def compare(self, *runs: str | Run) -> Comparison:
        """Compare runs: parameters, metrics, cost, code and curves."""
        from outlast.app.comparison import compare_runs

        return compare_runs(self._workspace, names_of(runs))


def names_of(runs: Sequence[str | Run]) -> list[str]:
    return [one.name if isinstance(one, Run) else one for one in runs]


def workspace(url: Path | Space = "") -> Space:
    """Open a workspace: a folder, `gs://…` or `s3://…`.

    Without a URL: OUTLAST_WORKSPACE, `workspace` in the nearest `outlast.toml`, else `~/.outlast/workspace`.
    """
    return url if isinstance(url, Space) else Space(find_workspace(os.fspath(url)))


def open_run(url: str, name: str) -> Run:
    """Return a run of the workspace at a URL; how a pickled `Run` is restored."""
    return Run(find_workspace(url), name)


def submit(
    command: str | Sequence[str] | None = None,
    *,
    file: Path = "",
    workspace: Path | Space = "",
    **fields: Unpack[RunFields],
) -> Run:
    """Submit a run and return at once. It continues when this process ends: a background supervisor runs.

    `command` is a shell command, or a list of arguments. Every field of `outlast.toml` is an argument: `params`,
    `checkpoint`, `limits` and other tables as mappings or typed objects, the fields of `[machine]` also directly
    (`gpu="T4"`). `file` names an `outlast.toml` whose fields the arguments replace. Raises SpecError with all problems.
    """
    project = project_of(os.fspath(file))
    space = workspace if isinstance(workspace, Space) else Space(find_workspace(os.fspath(workspace), project))
    request = submit_fields(space._workspace, command, fields, project=project, report=warn)
    return Run(space._workspace, request.run)


def warn(text: str) -> None:
    """Report a file that was left out, or a likely mistake, where the user sees it."""
    print(f"outlast: {text}", file=sys.stderr)
