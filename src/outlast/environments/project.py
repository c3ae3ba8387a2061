"""The environment of a project, decided at submit: found, resolved and recorded in the workspace."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from outlast.code.environment import EnvironmentRecord, record_of, store_lock
from outlast.environments.detect import Detected, conda_program, detect
from outlast.environments.resolve import resolve
from outlast.errors import OutlastError, SpecError
from outlast.kit.uv import find_uv
from outlast.spec.spec import EnvironmentSpec
from outlast.store.bucket import Bucket

# On machines that share this computer's files, these files mean an environment; without them its packages are used.
_EXACT = ("uv", "requirements")

Base = Literal["host", "default", "chosen"]


def project_environment(
    bucket: Bucket,
    folder: str,
    wanted: EnvironmentSpec,
    *,
    base: Base,
    report: Callable[[str], None],
    needs: str = "",
) -> EnvironmentRecord | None:
    """Resolve and store the environment of a code folder; None if the machine's own packages are used.

    `needs` is a package without which a detected file is not used. Raises SpecError before anything is launched.
    """
    if wanted.source == "host":
        return None
    detected = detect(folder, wanted=wanted.source, python=wanted.python)
    if base == "host":
        if wanted.source == "auto" and detected.kind not in _EXACT:
            return None
        if why := _why_not_here(detected):
            if wanted.source != "auto":
                raise SpecError([f"{detected.file}: {why.message}"], hint=why.hint)
            report(f"environment: {detected.file} is not used: {why.message}; using the packages of this computer")
            if why.hint:
                report(f"hint: {why.hint}")
            return None
    elif detected.kind == "conda" and base == "default":
        raise SpecError(
            [f"{detected.file}: the default images of clouds have neither micromamba nor conda"],
            hint="choose an image with one ([machine] image), or list the packages in requirements.txt",
        )
    lock, remarks = resolve(folder, detected, extras=wanted.extras, torch=wanted.torch)
    record = record_of(
        detected.kind,
        lock=lock,
        file=detected.file,
        python=detected.python,
        python_min=detected.python_min,
        torch=wanted.torch,
    )
    if needs and not re.search(rf"^{needs}==", lock, re.MULTILINE):
        if wanted.source != "auto":
            raise SpecError([f"[environment]: {detected.file or 'none'} does not list `{needs}`, which machines need"])
        if detected.file:
            report(f"environment: {detected.file} is not used: it does not list `{needs}`; using the image's packages")
        return None
    if lock:
        record = store_lock(bucket, record, lock)
    for remark in remarks:
        report(remark)
    if base != "host":
        report(f"environment: {record.describe()}")
    return record


def _why_not_here(detected: Detected) -> OutlastError | None:
    """Return why this computer cannot build the environment; None if it can."""
    if detected.kind == "conda":
        if conda_program() is None:
            return OutlastError(
                "this computer has neither micromamba nor conda",
                hint="install one, list the packages in requirements.txt, or use `--environment host`",
            )
        return None
    try:
        find_uv()
    except OutlastError as problem:
        return problem
    return None
