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
_TOOLKIT = "nvidia-container-toolkit"
_NVIDIA = "https://nvidia.github.io/libnvidia-container"
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
    if engine.kind != "runc" and gpus:
        _connect_gpus(engine, report)
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


def _connect_gpus(engine: Engine, report: Report) -> None:
    """Let an engine pass the GPUs on; install NVIDIA's toolkit for it if need be. Raises ContainerUnavailable."""
    if not shutil.which("nvidia-ctk") and not os.path.exists(_CDI):
        _install_toolkit(engine, report)
        if engine.kind == "docker":  # it looks for the toolkit when it starts
            _run_or_fail(["systemctl", "restart", "docker"])
    if engine.kind == "podman" and not os.path.exists(_CDI):
        _run_or_fail(["nvidia-ctk", "cdi", "generate", f"--output={_CDI}"])


def _install_toolkit(engine: Engine, report: Report) -> None:
    hint = f"use a machine image with `{_TOOLKIT}`, or install it with `[image] run`"
    why = f"{engine.kind} reaches GPUs through the NVIDIA Container Toolkit, which this image lacks"
    if not apt.can_install():
        raise ContainerUnavailable(f"[machine] container: {why}", hint=hint)
    report("installing the NVIDIA Container Toolkit, because this image lacks it")
    try:
        apt.add_repository(_TOOLKIT, key_url=f"{_NVIDIA}/gpgkey", url=f"{_NVIDIA}/stable/deb/$(ARCH)")
        failed = apt.install(_TOOLKIT, report)
    except OSError as problem:
        failed = f"{_NVIDIA}/gpgkey: {problem}"
    if failed:
        raise ContainerUnavailable(f"[machine] container: {why}, and it cannot be installed: {failed}", hint=hint)


def _run_or_fail(argv: list[str]) -> None:
    """Run a program. Raises ContainerUnavailable."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except OSError as problem:
        raise ContainerUnavailable(f"[machine] container: cannot run `{argv[0]}`: {problem.strerror}") from problem
    if done.returncode != 0:
        raise ContainerUnavailable(f"[machine] container: `{' '.join(argv[:3])}` failed: {done.stderr.strip()[-300:]}")


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
