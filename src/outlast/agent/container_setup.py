"""Containers on machines of public clouds: installs an engine if the image has none, and logs in to registries."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable

from outlast.agent import apt
from outlast.agent.container import OCI, ContainerUnavailable, Engine, find_engine, prepare, qualified
from outlast.agent.instance import Instance
from outlast.workspace import RunRequest

_CDI = "/etc/cdi/nvidia.yaml"
_IMAGES = 'use a machine image with docker or podman: `[machine] image`, or `[image] packages = ["podman"]`'
Report = Callable[[str], None]


def engine_for(request: RunRequest, report: Report, *, instance: Instance | None) -> Engine | None:
    """Return the engine, with the image fetched; None without a container. Raises ContainerUnavailable.

    `instance` is the machine; None on a machine that must not be changed, such as this computer.
    """
    image, gpus = request.spec.machine.container, request.spec.machine.gpus
    if not image:
        return None
    if instance is None:
        return prepare(image, report)
    engine = _found_or_installed(image, report)
    if engine.kind == "podman" and gpus:
        _describe_gpus()
    if engine.kind != "runc":
        _log_in(engine, image, instance, report)
    return prepare(image, report, engine=engine)


def _found_or_installed(image: str, report: Report) -> Engine:
    try:
        return find_engine(image)
    except ContainerUnavailable:
        if image.startswith(OCI):
            raise
    if not apt.can_install():
        why = (
            "this image has neither `docker` nor `podman`, and outlast installs podman only as root and with `apt-get`"
        )
        raise ContainerUnavailable(f"[machine] container: {why}", hint=_IMAGES)
    report("installing podman, because this image has no container engine")
    if not (failed := apt.install("podman", report)):
        return find_engine(image)
    raise ContainerUnavailable(f"[machine] container: `apt-get` cannot install podman: {failed}", hint=_IMAGES)


def _describe_gpus() -> None:
    """Write the description of the GPUs that podman needs. Raises ContainerUnavailable."""
    if os.path.exists(_CDI):
        return
    if not shutil.which("nvidia-ctk"):
        raise ContainerUnavailable(
            "[machine] container: podman reaches GPUs through the NVIDIA Container Toolkit, which this image lacks",
            hint="use a machine image with `nvidia-container-toolkit`, or install it with `[image] run`",
        )
    argv = ["nvidia-ctk", "cdi", "generate", f"--output={_CDI}"]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ContainerUnavailable(
            f"[machine] container: `nvidia-ctk cdi generate` failed: {done.stderr.strip()[-300:]}"
        )


def registry_of(image: str) -> str:
    """Return the host of an image's registry; empty for Docker Hub."""
    host = qualified(image).partition("/")[0]
    return "" if host == "docker.io" else host


def _log_in(engine: Engine, image: str, instance: Instance, report: Report) -> None:
    """Log in to a private registry of the machine's own cloud, with the machine's account."""
    host = registry_of(image)
    try:
        login = instance.registry_login(host) if host else None
    except OSError as problem:
        report(f"no login to {host}: {problem}")  # the image may be public
        return
    if login is None:
        return
    user, password = login
    done = subprocess.run(
        [engine.program, "login", "--username", user, "--password-stdin", host],
        input=password,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        report(f"{engine.kind} cannot log in to {host}: {(done.stderr or done.stdout).strip()[-300:]}")
