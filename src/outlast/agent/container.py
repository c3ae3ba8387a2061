"""The command in a container: finds an engine and the image before the attempt starts, and builds its command line.

Everything that the command needs is mounted under the path that it has on the machine, so that OUTLAST_ variables mean
the same inside. How it is watched, told to leave and ended is `process.py`'s, as for every command.
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
# The machine's own places and programs: inside, the image's are meant.
_LEFT_OUTSIDE = ("PATH", "HOME", "TMPDIR", "USER", "LOGNAME", "SHELL", "LD_LIBRARY_PATH", "SSL_CERT_FILE")
_GPU_DEVICE = "/dev/nvidiactl"
# A daemon that does not answer at all; pulls are not bounded, for images have many gigabytes.
_ASK_S = 60.0


class ContainerUnavailable(OutlastError):
    """The container cannot be had on this machine, nor on the next one of its kind: trying again is no use."""


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """The program that runs containers here."""

    kind: Kind
    program: str


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """All that a container is started with."""

    image: str
    name: str
    place: AttemptPaths
    user: int
    group: int
    gpus: bool = False
    # Variables that the submitter asked for; they are given whatever they are called.
    wanted: tuple[str, ...] = ()


class StartedContainer(msgspec.Struct, frozen=True, kw_only=True):
    """What to execute, with which environment, how to find the container's first process, what to do in the end."""

    argv: list[str]
    environment: dict[str, str]
    anchor: Callable[[], int]
    forget: Callable[[], None] = lambda: None


def folders(place: AttemptPaths) -> list[str]:
    """What is mounted, each folder once: those inside of another come along with it."""
    signals = os.path.dirname(place.notice_file)
    return outermost([place.code, place.checkpoints, place.outputs, place.cache, signals])


def outermost(paths: Iterable[str]) -> list[str]:
    """Each once, and none that is below another."""
    chosen: list[str] = []
    for path in sorted(set(paths)):
        if not any(path == above or path.startswith(above.rstrip("/") + "/") for above in chosen):
            chosen.append(path)
    return chosen


def inner_environment(container: Container, environment: Mapping[str, str]) -> dict[str, str]:
    """The command's variables inside: without those that name places and programs of the machine."""
    kept = {name: value for name, value in environment.items() if name in container.wanted or name not in _LEFT_OUTSIDE}
    if "HOME" not in kept and container.user != 0:
        # The image knows no home of this user, and `/`, which engines say then, cannot be written.
        kept["HOME"] = home_inside(container.place)
    return kept


def home_inside(place: AttemptPaths) -> str:
    return os.path.join(os.path.dirname(place.notice_file), "home")


def command_line(engine: Engine, container: Container, argv: Sequence[str], names: Iterable[str]) -> list[str]:
    """`docker run …` or `podman run …`. Of variables only the names: values would be seen by everybody in `ps`."""
    line = [engine.program, "run", "--rm", "--name", container.name]
    # Of the machine: its network, for the metadata server; its shared memory, for data loaders; its process space, for
    # as process 1 of another one a program that does not handle SIGTERM would never hear it.
    line += ["--network", "host", "--ipc", "host", "--pid", "host"]
    line += ["--user", f"{container.user}:{container.group}"]
    if engine.kind == "podman":
        line += ["--security-opt", "label=disable"]
        if container.user != 0:
            line += ["--userns", "keep-id"]
    if container.gpus:
        line += ["--device", "nvidia.com/gpu=all"] if engine.kind == "podman" else ["--gpus", "all"]
    for folder in folders(container.place):
        # Not `--volume`, in which a colon ends the path. The fields are those of a CSV file.
        fields = ("type=bind", f"source={folder}", f"target={folder}")
        line += ["--mount", ",".join(map(_quoted, fields))]
    line += ["--workdir", container.place.code]
    for name in sorted(names):
        line += ["--env", name]
    # The image's own entry point would swallow the command, or put a shell before it.
    return [*line, "--entrypoint", argv[0], container.image, *argv[1:]]


def _quoted(field: str) -> str:
    return '"' + field.replace('"', '""') + '"' if "," in field or '"' in field else field


def find_engine(image: str, which: Callable[[str], str | None] = shutil.which) -> Engine:
    """The engine for this image. Raises ContainerUnavailable with the way to get one."""
    kinds: tuple[Kind, ...] = ("runc",) if image.startswith(OCI) else ("docker", "podman")
    for kind in kinds:
        if program := which(kind) or which(f"/usr/sbin/{kind}"):
            return Engine(kind=kind, program=program)
    if image.startswith(OCI):
        raise ContainerUnavailable(
            "[machine] container: there is no `runc` on this machine",
            hint='let the image have it: `[image] packages = ["runc"]`',
        )
    raise ContainerUnavailable(
        "[machine] container: there is neither `docker` nor `podman` on this machine",
        hint='let the image have one: `[image] packages = ["podman"]`; or use `oci:FOLDER`, which needs only `runc`',
    )


def engine_for(request: RunRequest, report: Callable[[str], None]) -> Engine | None:
    """Return the engine, with the image fetched; None without a container. Raises ContainerUnavailable."""
    image = request.spec.machine.container
    return prepare(image, report) if image else None


def of(request: RunRequest, place: AttemptPaths, attempt: int) -> Container:
    """The container of one attempt."""
    spec = request.spec
    return Container(
        image=spec.machine.container,
        name=f"outlast-{request.run}-a{attempt}",
        place=place,
        user=os.getuid(),
        group=os.getgid(),
        gpus=gpus_here(spec.machine.gpus),
        wanted=(*spec.env, *spec.secrets, *spec.databases, *(ca_variable(name) for name in spec.databases)),
    )


def prepare(image: str, report: Callable[[str], None], *, engine: Engine | None = None, pull: bool = False) -> Engine:
    """The engine, with the image at hand: fetched if it is not there, or anew. Raises ContainerUnavailable."""
    engine = engine or find_engine(image)
    if engine.kind == "runc":
        oci.root_of(oci_path(image), ContainerUnavailable)
        if not _has_cgroups():
            raise ContainerUnavailable(
                "[machine] container: `runc` needs the kernel's control groups, and this machine has none mounted",
                hint="on the local cloud use mode `root` or `pidns`: OUTLAST_LOCAL_MODE=pidns",
            )
        return engine
    is_here = _ask(engine, "image", "inspect", image).returncode == 0
    if is_here and not pull:
        return engine
    answer = _ask(engine, "version")
    if answer.returncode != 0:
        raise ContainerUnavailable(
            f"[machine] container: {engine.kind} does not work on this machine: {_last_line(answer)}",
            hint=f"see that its service runs and that this user may use it: `{engine.kind} info`",
        )
    report(f"fetching the container image {image}")
    answer = subprocess.run(
        [engine.program, "pull", image], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if answer.returncode != 0 and is_here:
        report(f"{engine.kind} cannot get `{image}`, and the one that is there is taken: {_last_line(answer)}")
    elif answer.returncode != 0:
        raise ContainerUnavailable(
            f"[machine] container: {engine.kind} cannot get `{image}`: {_last_line(answer)}",
            hint="check its name and tag, and whether this machine may read from that registry",
        )
    return engine


def _ask(engine: Engine, *argv: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [engine.program, *argv],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ASK_S,
            check=False,
        )
    except subprocess.TimeoutExpired as problem:
        raise ContainerUnavailable(
            f"[machine] container: {engine.kind} did not answer within {_ASK_S:g} s"
        ) from problem


def _last_line(answer: subprocess.CompletedProcess[str]) -> str:
    lines = (answer.stderr or answer.stdout).strip().splitlines()
    return lines[-1] if lines else f"it ended with {answer.returncode} and said nothing"


def oci_path(image: str) -> str:
    return os.path.abspath(os.path.expanduser(image.removeprefix(OCI)))


def gpus_here(wanted: int) -> bool:
    """Whether GPUs are to be passed on: asked for, and there. The local cloud only pretends to have some."""
    return wanted > 0 and os.path.exists(_GPU_DEVICE)


def command_for(
    engine: Engine | None,
    request: RunRequest,
    place: AttemptPaths,
    attempt: int,
    argv: list[str],
    environment: dict[str, str],
) -> Command:
    """The command, started: inside of a container where the run has an engine. Raises OSError, ValueError."""
    if engine is None and request.spec.interactive:
        return TerminalCommand(argv, folder=place.code, environment=environment, home=place.home)
    if engine is None:
        return Command(argv, folder=place.code, environment=environment)
    started = start(engine, of(request, place, attempt), argv, environment)
    return Command(
        started.argv,
        folder=place.code,
        environment=started.environment,
        anchor=started.anchor,
        forget=started.forget,
    )


def start(
    engine: Engine, container: Container, argv: Sequence[str], environment: Mapping[str, str]
) -> StartedContainer:
    """What to execute for the command to run inside. For `runc` a bundle is written."""
    inside = inner_environment(container, environment)
    os.makedirs(home_inside(container.place), exist_ok=True)
    outside = {name: value for name, value in environment.items() if name not in inside}
    if engine.kind == "runc":
        return _start_runc(engine, container, argv, inside, outside)
    return StartedContainer(
        argv=command_line(engine, container, argv, inside),
        environment={**outside, **inside, "PATH": environment.get("PATH", os.defpath)},
        anchor=lambda: _first_process(engine, container.name),
    )


def _first_process(engine: Engine, name: str) -> int:
    answer = _ask(engine, "inspect", "--format", "{{.State.Pid}}", name)
    return int(answer.stdout) if answer.returncode == 0 and answer.stdout.strip().isdigit() else 0


def _start_runc(
    engine: Engine,
    container: Container,
    argv: Sequence[str],
    inside: Mapping[str, str],
    outside: Mapping[str, str],
) -> StartedContainer:
    # On the machine's own disk, which goes with the machine, and not mounted: the variables are in it, secrets too.
    bundle = os.path.join(container.place.home, "container")
    shutil.rmtree(bundle, ignore_errors=True)
    os.makedirs(bundle, mode=0o700)
    config = oci.config(
        oci_path(container.image),
        argv,
        mounts=folders(container.place),
        folder=container.place.code,
        environment=inside,
        user=container.user,
        group=container.group,
        refuse=ContainerUnavailable,
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
        forget=lambda: shutil.rmtree(bundle, ignore_errors=True),
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
