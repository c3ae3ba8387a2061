"""The command in a container: finds an engine, fetches the image before the attempt starts, builds the command line.

Folders are mounted under the path that they have on the machine, so that OUTLAST_ variables are valid inside.
`process.py` watches, signals and kills the command, as without a container.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from outlast.agent import oci
from outlast.agent.mounts import ca_variable
from outlast.agent.paths import AttemptPaths
from outlast.agent.process import Command
from outlast.agent.terminal import TerminalCommand
from outlast.errors import OutlastError
from outlast.workspace import RunRequest

Kind = Literal["docker", "podman", "runc"]
OCI = "oci:"
# Paths and programs of the machine, which do not exist in the image.
_LEFT_OUTSIDE = ("PATH", "HOME", "TMPDIR", "USER", "LOGNAME", "SHELL", "LD_LIBRARY_PATH", "SSL_CERT_FILE")
_GPU_DEVICE = "/dev/nvidiactl"
# For a daemon that does not respond. Pulls have no limit: images have many gigabytes.
_TIMEOUT_S = 60.0


class ContainerUnavailable(OutlastError):
    """The container cannot run on this machine, nor on another one of its kind: a retry is useless."""


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """The program that runs containers on this machine."""

    kind: Kind
    program: str


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """The options that a container is started with."""

    image: str
    name: str
    paths: AttemptPaths
    user: int
    group: int
    gpus: bool = False
    # Variables of the spec; they are passed even if they are in `_LEFT_OUTSIDE`.
    wanted: tuple[str, ...] = ()


class StartedContainer(msgspec.Struct, frozen=True, kw_only=True):
    """The command line and environment, how to find the container's first process, and how to clean up."""

    argv: list[str]
    environment: dict[str, str]
    anchor: Callable[[], int]
    cleanup: Callable[[], None] = lambda: None


def folders(paths: AttemptPaths) -> list[str]:
    """Return the folders to mount, without those inside another one."""
    signals = os.path.dirname(paths.notice_file)
    return outermost([paths.code, paths.checkpoints, paths.outputs, paths.cache, signals])


def outermost(paths: Iterable[str]) -> list[str]:
    """Return the paths without duplicates and without those below another one."""
    chosen: list[str] = []
    for path in sorted(set(paths)):
        if not any(path == above or path.startswith(above.rstrip("/") + "/") for above in chosen):
            chosen.append(path)
    return chosen


def inner_environment(container: Container, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables inside the container: without those that name paths and programs of the machine."""
    kept = {name: value for name, value in environment.items() if name in container.wanted or name not in _LEFT_OUTSIDE}
    if "HOME" not in kept and container.user != 0:
        # The image has no home folder for this user, and `/`, the engines' default, is not writable.
        kept["HOME"] = home_inside(container.paths)
    return kept


def home_inside(paths: AttemptPaths) -> str:
    return os.path.join(os.path.dirname(paths.notice_file), "home")


def command_line(engine: Engine, container: Container, argv: Sequence[str], names: Iterable[str]) -> list[str]:
    """Return `docker run …` or `podman run …`, with the names of variables only: `ps` shows values to every user."""
    line = [engine.program, "run", "--rm", "--name", container.name]
    # The machine's network, for the metadata server; its shared memory, for data loaders; its process namespace,
    # because process 1 of another namespace ignores SIGTERM unless it handles it.
    line += ["--network", "host", "--ipc", "host", "--pid", "host"]
    line += ["--user", f"{container.user}:{container.group}"]
    if engine.kind == "podman":
        line += ["--security-opt", "label=disable"]
        if container.user != 0:
            line += ["--userns", "keep-id"]
    if container.gpus:
        line += ["--device", "nvidia.com/gpu=all"] if engine.kind == "podman" else ["--gpus", "all"]
    for folder in folders(container.paths):
        # Not `--volume`, where a colon ends the path. The fields are quoted as in CSV.
        fields = ("type=bind", f"source={folder}", f"target={folder}")
        line += ["--mount", ",".join(map(_quoted, fields))]
    line += ["--workdir", container.paths.code]
    for name in sorted(names):
        line += ["--env", name]
    # The image's entry point would replace the command, or run it in a shell.
    return [*line, "--entrypoint", argv[0], container.image, *argv[1:]]


def _quoted(field: str) -> str:
    return '"' + field.replace('"', '""') + '"' if "," in field or '"' in field else field


def find_engine(image: str, which: Callable[[str], str | None] = shutil.which) -> Engine:
    """Return the engine for this image. Raises ContainerUnavailable."""
    kinds: tuple[Kind, ...] = ("runc",) if image.startswith(OCI) else ("docker", "podman")
    for kind in kinds:
        if program := which(kind) or which(f"/usr/sbin/{kind}"):
            return Engine(kind=kind, program=program)
    if image.startswith(OCI):
        raise ContainerUnavailable(
            "[machine] container: the machine has no `runc`",
            hint='add it to the image: `[image] packages = ["runc"]`',
        )
    raise ContainerUnavailable(
        "[machine] container: the machine has neither `docker` nor `podman`",
        hint='add one to the image: `[image] packages = ["podman"]`; or use `oci:FOLDER`, which needs only `runc`',
    )


def of(request: RunRequest, paths: AttemptPaths, attempt: int) -> Container:
    """Return the container of one attempt."""
    spec = request.spec
    return Container(
        image=spec.machine.container,
        name=f"outlast-{request.run}-a{attempt}",
        paths=paths,
        user=os.getuid(),
        group=os.getgid(),
        gpus=gpus_here(spec.machine.gpus),
        wanted=(*spec.env, *spec.secrets, *spec.databases, *(ca_variable(name) for name in spec.databases)),
    )


def prepare(image: str, report: Callable[[str], None], *, engine: Engine | None = None, pull: bool = False) -> Engine:
    """Return the engine, and fetch the image if it is missing, or with `pull`. Raises ContainerUnavailable."""
    engine = engine or find_engine(image)
    if engine.kind == "runc":
        oci.root_of(oci_path(image), ContainerUnavailable)
        if not _has_cgroups():
            raise ContainerUnavailable(
                "[machine] container: `runc` needs control groups, and this machine has none mounted",
                hint="on the local cloud use mode `root` or `pidns`: OUTLAST_LOCAL_MODE=pidns",
            )
        return engine
    is_here = _run_engine(engine, "image", "inspect", image).returncode == 0
    if is_here and not pull:
        return engine
    done = _run_engine(engine, "version")
    if done.returncode != 0:
        raise ContainerUnavailable(
            f"[machine] container: {engine.kind} does not work on this machine: {_last_line(done)}",
            hint=f"check that its service runs and that this user may use it: `{engine.kind} info`",
        )
    report(f"fetching the container image {image}")
    # podman has no default registry.
    source = qualified(image) if engine.kind == "podman" else image
    done = subprocess.run(
        [engine.program, "pull", source], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0 and is_here:
        report(f"{engine.kind} cannot pull `{image}`, so the local copy is used: {_last_line(done)}")
    elif done.returncode != 0:
        raise ContainerUnavailable(
            f"[machine] container: {engine.kind} cannot pull `{image}`: {_last_line(done)}",
            hint="check its name and tag, and whether this machine may read from that registry",
        )
    return engine


def qualified(image: str) -> str:
    """Return the name of an image with its registry: Docker Hub unless it names another."""
    first, slash, _ = image.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return image
    return f"docker.io/{image}" if slash else f"docker.io/library/{image}"


def _run_engine(engine: Engine, *argv: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [engine.program, *argv],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as problem:
        raise ContainerUnavailable(
            f"[machine] container: {engine.kind} did not respond within {_TIMEOUT_S:g} s"
        ) from problem


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if lines else f"it exited with {done.returncode} and printed nothing"


def oci_path(image: str) -> str:
    return os.path.abspath(os.path.expanduser(image.removeprefix(OCI)))


def gpus_here(wanted: int) -> bool:
    """Return whether to pass GPUs on: requested, and present. The local cloud only pretends to have some."""
    return wanted > 0 and os.path.exists(_GPU_DEVICE)


def command_for(
    engine: Engine | None,
    request: RunRequest,
    paths: AttemptPaths,
    attempt: int,
    argv: list[str],
    environment: dict[str, str],
) -> Command:
    """Start the command, in a container if there is an engine. Raises OSError, ValueError."""
    if engine is None and request.spec.interactive:
        return TerminalCommand(argv, folder=paths.code, environment=environment, home=paths.home)
    if engine is None:
        return Command(argv, folder=paths.code, environment=environment)
    started = start(engine, of(request, paths, attempt), argv, environment)
    return Command(
        started.argv,
        folder=paths.code,
        environment=started.environment,
        anchor=started.anchor,
        cleanup=started.cleanup,
    )


def start(
    engine: Engine, container: Container, argv: Sequence[str], environment: Mapping[str, str]
) -> StartedContainer:
    """Return the command line that runs the command inside; for `runc`, write its bundle."""
    inside = inner_environment(container, environment)
    os.makedirs(home_inside(container.paths), exist_ok=True)
    outside = {name: value for name, value in environment.items() if name not in inside}
    if engine.kind == "runc":
        return _start_runc(engine, container, argv, inside, outside)
    return StartedContainer(
        argv=command_line(engine, container, argv, inside),
        environment={**outside, **inside, "PATH": environment.get("PATH", os.defpath)},
        anchor=lambda: _first_process(engine, container.name),
    )


def _first_process(engine: Engine, name: str) -> int:
    done = _run_engine(engine, "inspect", "--format", "{{.State.Pid}}", name)
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip().isdigit() else 0


def _start_runc(
    engine: Engine,
    container: Container,
    argv: Sequence[str],
    inside: Mapping[str, str],
    outside: Mapping[str, str],
) -> StartedContainer:
    # Not in a mounted folder: the bundle contains the variables, secrets included.
    bundle = os.path.join(container.paths.home, "container")
    shutil.rmtree(bundle, ignore_errors=True)
    os.makedirs(bundle, mode=0o700)
    config = oci.config(
        oci_path(container.image),
        argv,
        mounts=folders(container.paths),
        folder=container.paths.code,
        environment=inside,
        user=container.user,
        group=container.group,
        error=ContainerUnavailable,
    )
    path = os.path.join(bundle, "config.json")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(msgspec.json.encode(config))
    pid_file = os.path.join(bundle, "pid")
    line = [engine.program, "--root", os.path.join(bundle, "state"), "--log", os.path.join(bundle, "log")]
    line += ["run", "--bundle", bundle, "--pid-file", pid_file, container.name]
    return StartedContainer(
        argv=line,
        environment=dict(outside),
        anchor=lambda: _read_pid(pid_file),
        cleanup=lambda: shutil.rmtree(bundle, ignore_errors=True),
    )


def _has_cgroups() -> bool:
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            return any(" - cgroup" in line for line in file)
    except OSError:
        return False


def _read_pid(path: str) -> int:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read() or 0)
    except (OSError, ValueError):
        return 0
