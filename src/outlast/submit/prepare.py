"""Preparation of a validated run: store its code, resolve its secrets. The result is one value, a `PreparedRun`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping

import msgspec

from outlast.clouds.cloud import Cloud
from outlast.clouds.traits import traits_of
from outlast.code.bundle import CodeRecord, git_record, pack, store
from outlast.code.environment import EnvironmentRecord
from outlast.databases import lifecycle
from outlast.errors import SpecError
from outlast.kit import boot_script
from outlast.kit.libraries import store_libraries
from outlast.records.resources import ResourceRecords
from outlast.runs.folder_listing import survey
from outlast.spec.checkpoint_patterns import with_sidecars
from outlast.spec.spec import Spec
from outlast.sql.lease import PREFIX, url_of
from outlast.sql.session import engine_of, need
from outlast.store import access
from outlast.user import current_user
from outlast.workspace import Workspace

Report = Callable[[str], None]


class PreparedRun(msgspec.Struct, frozen=True, kw_only=True):
    """All that is needed to write a run: nothing of the submitter's folder or environment is read afterwards."""

    spec: Spec
    code: CodeRecord
    who: str
    # The submitter's PATH.
    path: str
    # Variable on the machine → value.
    secrets: dict[str, str]
    # Cloud → key to the workspace, for clouds whose machines have no access of their own.
    store_keys: dict[str, dict[str, str]]

    def __repr__(self) -> str:
        return f"PreparedRun({self.spec.name!r})"  # a traceback must not show secrets


def prepare(
    workspace: Workspace,
    clouds: Mapping[str, Cloud],
    spec: Spec,
    code: CodeRecord,
    *,
    environment: Mapping[str, str],
    report: Report = lambda _: None,
) -> PreparedRun:
    """Resolve everything else that a run needs, given its stored code. Databases that it uses are woken up."""
    secrets = {name: environment[variable] for name, variable in spec.secrets.items()}
    if spec.databases:
        secrets |= lifecycle.values_for(spec.databases, ResourceRecords(workspace, "database"), clouds)
    _prepare_lock(workspace, spec, secrets, report)
    store_keys = {
        name: access.key_given(workspace.url, name, environment)
        for name in spec.machine.clouds
        if access.needs_key(workspace.url, name, environment)
    }
    return PreparedRun(
        spec=spec,
        code=code,
        who=current_user(),
        path=_with_environment(workspace, spec, code, report, program_path(environment)),
        secrets=secrets,
        store_keys=store_keys,
    )


def _prepare_lock(workspace: Workspace, spec: Spec, secrets: Mapping[str, str], report: Report) -> None:
    """Make sure that machines can take the lock `db:NAME` in the database itself. Raises OutlastError."""
    if not spec.exclusive.startswith(PREFIX):
        return
    url = url_of(spec.exclusive, {**spec.env, **secrets})
    engine, name = engine_of(url), spec.exclusive.removeprefix(PREFIX)
    if engine is None:
        report(
            f'exclusive = "{spec.exclusive}" covers this workspace only, because the run does not use the database '
            f'`{name}`; with `databases = "{name}"` it holds for all users of the database'
        )
        return
    if any(traits_of(cloud).shares_host_files for cloud in spec.machine.clouds):
        need(engine)
    if any(not traits_of(cloud).shares_host_files for cloud in spec.machine.clouds):
        store_libraries(workspace.bucket, extra="db")


def _with_environment(workspace: Workspace, spec: Spec, code: CodeRecord, report: Report, path: str) -> str:
    """Return the PATH for clouds whose machines share this computer's files, where the environment is built now."""
    record = code.environment
    if record is None or not any(traits_of(cloud).shares_host_files for cloud in spec.machine.clouds):
        return path
    from outlast.environments.host import host_environment

    return os.path.join(host_environment(workspace.bucket, record, report), "bin") + os.pathsep + path


def program_path(environment: Mapping[str, str]) -> str:
    """Return the submitter's PATH, with the folder of the Python that runs outlast at its end."""
    path = os.pathsep.join([environment.get("PATH", ""), os.path.dirname(sys.executable)])
    return path.encode("utf-8", "replace").decode()


def store_code(workspace: Workspace, spec: Spec, report: Report) -> CodeRecord:
    """Store code and environment: the packed code folder or a commit, and the lock. Report files that are left out."""
    if any(not traits_of(cloud).shares_host_files for cloud in spec.machine.clouds):
        # Before anything is launched: this computer may lack the tools that build the kit.
        boot_script.metadata(workspace.bucket)
    found = _store_environment(workspace, spec, report)
    return msgspec.structs.replace(_store_code(workspace, spec, report), environment=found)


def _store_environment(workspace: Workspace, spec: Spec, report: Report) -> EnvironmentRecord | None:
    """Resolve and store the lock of the command's packages; None if the machine's own packages are used."""
    if spec.machine.container:
        return None
    from outlast.environments.project import Base, project_environment

    wanted = spec.environment
    if spec.code.git and wanted.source == "auto":
        # The machine fetches a repository by itself, so that its files are unknown here.
        wanted = msgspec.structs.replace(wanted, source="none")
    on_host = all(traits_of(cloud).shares_host_files for cloud in spec.machine.clouds)
    if on_host and wanted.source == "none" and spec.environment.source == "auto":
        return None
    if wanted.source == "host" and not on_host:
        away = next(cloud for cloud in spec.machine.clouds if not traits_of(cloud).shares_host_files)
        raise SpecError(
            [f'[environment] from = "host": machines of `{away}` do not have the packages of this computer'],
            hint="name a file such as requirements.txt, or leave it out: outlast finds the file by itself",
        )
    base: Base = "host" if on_host else "chosen" if spec.machine.image or spec.image else "default"
    return project_environment(workspace.bucket, spec.code.path, wanted, base=base, report=report)


def _store_code(workspace: Workspace, spec: Spec, report: Report) -> CodeRecord:
    if spec.code.git:
        return git_record(spec.code.git, spec.code.ref)
    # Outputs and checkpoints of earlier runs are not code: this run would resume from such a checkpoint unasked.
    saved, names = spec.checkpoint.path, with_sidecars(spec.checkpoint.names)
    exclude = [f"/{path}/" for path in (spec.output_path, "" if names else saved) if path not in ("", ".")]
    exclude += ["/" + os.path.normpath(os.path.join(saved, name)) for name in names]
    bundle = pack(spec.code.path, exclude=exclude, bytes_max=int(spec.code.size_max_gb * 1e9))
    for left in bundle.left_out:
        report(f"left out of the bundle: {left.path} ({left.why})")
    # Report these as well: a pattern may match a file that the program needs.
    for path in survey(os.path.join(spec.code.path, saved), names=names).files if names else ():
        report(
            f"left out of the bundle: {os.path.normpath(os.path.join(saved, path))} (a checkpoint of an earlier run)"
        )
    return store(workspace.bucket, bundle)
