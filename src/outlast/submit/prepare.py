"""Preparation of a validated run: store its code, resolve its secrets. The result is one value, a `PreparedRun`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping

import msgspec

from outlast import private
from outlast.clouds.cloud import Cloud
from outlast.clouds.traits import traits_of
from outlast.code.bundle import CodeRecord, git_record, pack, store
from outlast.code.environment import EnvironmentRecord, record_of, store_lock
from outlast.databases import lifecycle
from outlast.kit import boot_script
from outlast.records.resources import ResourceRecords
from outlast.runs.folder_listing import survey
from outlast.spec.checkpoint_patterns import with_sidecars
from outlast.spec.spec import Spec
from outlast.store import access
from outlast.user import current_user
from outlast.workspace import Workspace


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
) -> PreparedRun:
    """Resolve everything else that a run needs, given its stored code. Databases that it uses are woken up."""
    secrets = {name: environment[variable] for name, variable in spec.secrets.items()}
    if spec.databases:
        secrets |= lifecycle.values_for(spec.databases, ResourceRecords(workspace, "database"), clouds)
    store_keys = {
        name: access.key_given(workspace.url, name, environment)
        for name in spec.machine.clouds
        if access.needs_key(workspace.url, name, environment)
    }
    return PreparedRun(
        spec=spec,
        code=code,
        who=current_user(),
        path=_with_environment(workspace, spec, code, program_path(environment)),
        secrets=secrets,
        store_keys=store_keys,
    )


def _with_environment(workspace: Workspace, spec: Spec, code: CodeRecord, path: str) -> str:
    """Return the PATH for clouds whose machines share this computer's files, where the environment is built now."""
    record = code.environment
    if record is None or not any(traits_of(cloud).shares_host_files for cloud in spec.machine.clouds):
        return path
    from outlast.environments.install import Installer
    from outlast.kit.uv import find_uv

    installer = Installer(workspace.bucket, record, root=private.folder("cache"), uv=find_uv, report=lambda _: None)
    return os.path.join(installer.install(), "bin") + os.pathsep + path


def program_path(environment: Mapping[str, str]) -> str:
    """Return the submitter's PATH, with the folder of the Python that runs outlast at its end."""
    path = os.pathsep.join([environment.get("PATH", ""), os.path.dirname(sys.executable)])
    return path.encode("utf-8", "replace").decode()


def store_code(workspace: Workspace, spec: Spec, report: Callable[[str], None]) -> CodeRecord:
    """Store code and environment: the packed code folder or a commit, and the lock. Report files that are left out."""
    if any(not traits_of(cloud).shares_host_files for cloud in spec.machine.clouds):
        # Before anything is launched: this computer may lack what builds the kit.
        boot_script.metadata(workspace.bucket)
    found = _store_environment(workspace, spec, report)
    return msgspec.structs.replace(_store_code(workspace, spec, report), environment=found)


def _store_environment(workspace: Workspace, spec: Spec, report: Callable[[str], None]) -> EnvironmentRecord | None:
    """Resolve and store the lock of the command's packages; None if the machine's own packages are used."""
    wanted = spec.environment
    host = all(traits_of(cloud).shares_host_files for cloud in spec.machine.clouds)
    if spec.machine.container or wanted.source == "host" or (host and wanted.source == "auto"):
        return None
    from outlast.environments.detect import detect
    from outlast.environments.resolve import resolve

    # The machine fetches a repository by itself, so that its files are unknown here.
    source = "none" if spec.code.git and wanted.source == "auto" else wanted.source
    detected = detect(spec.code.path, wanted=source, python=wanted.python)
    lock, remarks = resolve(spec.code.path, detected, extras=wanted.extras)
    record = record_of(
        detected.kind, lock=lock, file=detected.file, python=detected.python, python_min=detected.python_min
    )
    if lock:
        store_lock(workspace.bucket, record, lock)
    for remark in remarks:
        report(remark)
    report(f"environment: {record.describe()}")
    return record


def _store_code(workspace: Workspace, spec: Spec, report: Callable[[str], None]) -> CodeRecord:
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
