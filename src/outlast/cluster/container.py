"""The container on a cluster's machine in which Ray and the set-up run. It starts once; every command runs inside.

Engines and images work as for runs (`outlast.agent.container`). The container shares the machine's network, processes,
shared memory and GPUs, and sees mounts at the machine's paths. Unlike a run's container, it lives as long as the
machine, and the set-up may write into it.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Sequence

import msgspec

from outlast.agent import container, oci
from outlast.cluster.paths import NodePaths
from outlast.errors import OutlastError
from outlast.machines.create import Report
from outlast.spec.cluster import ContainerSpec

# Keeps the container alive.
_IDLE_COMMAND = ("/bin/sh", "-c", "while :; do sleep 3600; done")
# Docker's default capabilities with their numbers: enough for package managers.
_CAPABILITIES = {
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_FOWNER": 3,
    "CAP_FSETID": 4,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_SETPCAP": 8,
    "CAP_NET_BIND_SERVICE": 10,
    "CAP_NET_RAW": 13,
    "CAP_SYS_CHROOT": 18,
    "CAP_MKNOD": 27,
    "CAP_AUDIT_WRITE": 29,
    "CAP_SETFCAP": 31,
    "CAP_SYS_NICE": 23,
}
# Further capabilities that a cluster file may request.
_EXTRA_CAPABILITIES = {
    "CAP_NET_ADMIN": 12,
    "CAP_IPC_LOCK": 14,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_SYS_RESOURCE": 24,
    "CAP_DAC_READ_SEARCH": 2,
    "CAP_PERFMON": 38,
    "CAP_BPF": 39,
}


class NodeContainer:
    """The container of one machine."""

    def __init__(self, spec: ContainerSpec, paths: NodePaths, report: Report) -> None:
        self.spec = spec
        self.paths = paths
        self.report = report
        self.home = f"{paths.folder}/container"

    def start(self, mounts: Sequence[str]) -> tuple[tuple[str, ...], bool]:
        """Start the container. Return the argv prefix for commands in it and whether it is new. Raises OutlastError."""
        try:
            found = container.find_engine(self.spec.image, _only_podman if self.spec.podman else shutil.which)
            engine = container.prepare(self.spec.image, self.report, engine=found, pull=self.spec.pull)
        except container.ContainerUnavailable as problem:
            why = problem.message.removeprefix("[machine] container: ")
            raise OutlastError(f"the container {self.spec.image}: {why}", hint=problem.hint) from problem
        binds = [*((path, path, "rw") for path in mounts), *map(_volume, self.spec.volumes)]
        if engine.kind == "runc":
            return self._start_runc(engine, binds)
        return self._start_daemon(engine, binds)

    # docker and podman

    def _start_daemon(
        self, engine: container.Engine, binds: Sequence[tuple[str, str, str]]
    ) -> tuple[tuple[str, ...], bool]:
        inside = (engine.program, "exec", "-i", self.spec.name)
        found = _call(engine.program, "inspect", "--format", "{{.State.Running}}", self.spec.name)
        running = found.stdout.strip() if found.returncode == 0 else ""
        if running == "true":
            return inside, False
        argv = ["start", self.spec.name] if running == "false" else self.run_argv(engine, binds)
        self.report(f"starting the container {self.spec.name}")
        answer = _call(engine.program, *argv)
        if answer.returncode != 0:
            raise OutlastError(f"the container {self.spec.image} does not start: {_last_line(answer)}")
        return inside, running != "false"

    def run_argv(self, engine: container.Engine, binds: Sequence[tuple[str, str, str]]) -> list[str]:
        """Return the arguments of `docker run` or `podman run`, without the program."""
        spec = self.spec
        argv = ["run", "--detach", "--name", spec.name, "--network", "host", "--ipc", "host", "--pid", "host"]
        argv += ["--user", "0:0"]
        if engine.kind == "podman":
            argv += ["--security-opt", "label=disable"]
        if spec.gpus and container.gpus_here(1):
            argv += ["--device", "nvidia.com/gpu=all"] if engine.kind == "podman" else ["--gpus", "all"]
        for source, target, mode in binds:
            argv += ["--mount", f"type=bind,source={source},target={target}" + (",readonly" if mode == "ro" else "")]
        for name, limit in spec.ulimits.items():
            argv += ["--ulimit", f"{name}={limit}"]
        for capability in spec.capabilities:
            argv += ["--cap-add", capability.removeprefix("CAP_")]
        return [*argv, "--entrypoint", _IDLE_COMMAND[0], spec.image, *_IDLE_COMMAND[1:]]

    # runc

    def _start_runc(
        self, engine: container.Engine, binds: Sequence[tuple[str, str, str]]
    ) -> tuple[tuple[str, ...], bool]:
        own = (engine.program, "--root", f"{self.home}/state")
        inside = (*own, "exec", self.spec.name)
        if '"status": "running"' in _call(*own, "state", self.spec.name).stdout:
            return inside, False
        _call(*own, "delete", "--force", self.spec.name)
        config = oci.config(
            container.oci_path(self.spec.image), _IDLE_COMMAND, mounts=(), folder="/", environment={}, user=0, group=0,
            error=container.ContainerUnavailable,
        )  # fmt: skip
        config["root"] = {"path": self._writable(config["root"]["path"]), "readonly": False}
        # Use the machine's /tmp, on its disk: it has Ray's sessions.
        binds = [("/tmp", "/tmp", "rw"), *binds]
        config["mounts"] = [one for one in config["mounts"] if one["destination"] != "/tmp"]
        config["mounts"] += [
            {"destination": target, "type": "none", "source": source, "options": ["rbind", mode]}
            for source, target, mode in binds
        ]
        for source, _, _ in binds:
            if not os.path.exists(source):
                os.makedirs(source)  # as docker does
        process = config["process"]
        process["capabilities"] = dict.fromkeys(("bounding", "effective", "permitted"), self._capabilities())
        process["noNewPrivileges"] = False
        process["rlimits"] = [_limit(name, value) for name, value in self.spec.ulimits.items()]
        with open(os.open(f"{self.home}/config.json", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(msgspec.json.encode(config))
        self.report(f"starting the container {self.spec.name}")
        # Discard the output: a container that inherits our pipe would block us forever.
        answer = _call(
            *own, "--log", f"{self.home}/log", "run", "--detach", "--bundle", self.home, self.spec.name, quiet=True
        )
        if answer.returncode != 0:
            with open(f"{self.home}/log", encoding="utf-8", errors="replace") as file:
                lines = file.read().strip().splitlines()
            raise OutlastError(f"the container {self.spec.image} does not start: {lines[-1] if lines else 'no reason'}")
        return inside, True

    def _writable(self, root: str) -> str:
        """Mount an overlay over the root, which others may use too. Writes go to memory and are lost with it."""
        paths = f"{self.home}/layers"
        for folder in (self.home, paths):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        _call_or_raise("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", paths)
        for name in ("upper", "work", "root"):
            os.mkdir(f"{paths}/{name}")
        options = f"lowerdir={root},upperdir={paths}/upper,workdir={paths}/work"
        tried = _call("mount", "-t", "overlay", "-o", options, "overlay", f"{paths}/root")
        if tried.returncode != 0:
            # Root of a user namespace needs this option.
            _call_or_raise("mount", "-t", "overlay", "-o", f"{options},userxattr", "overlay", f"{paths}/root")
        return f"{paths}/root"

    def _capabilities(self) -> list[str]:
        allowed = _bounding()
        wanted = [name for name, number in _CAPABILITIES.items() if allowed >> number & 1]
        for name in self.spec.capabilities:
            number = {**_CAPABILITIES, **_EXTRA_CAPABILITIES}.get(name)
            if number is None or not allowed >> number & 1:
                raise OutlastError(f"the container {self.spec.image}: this machine cannot grant {name}")
            wanted.append(name)
        return list(dict.fromkeys(wanted))


def _only_podman(program: str) -> str | None:
    return shutil.which(program) if program.endswith("podman") else None


def _volume(text: str) -> tuple[str, str, str]:
    source, target, *mode = text.split(":")
    return source, target, mode[0] if mode else "rw"


def _limit(name: str, value: str) -> dict[str, object]:
    soft, _, hard = value.partition(":")
    kind = f"RLIMIT_{name.upper()}"
    most = resource.getrlimit(getattr(resource, kind))[1] if hasattr(resource, kind) else -1
    wanted = [int(soft), int(hard or soft)]
    # runc refuses limits above those of the machine's root.
    soft_max, hard_max = (most if limit == -1 else limit if most == -1 else min(limit, most) for limit in wanted)
    return {"type": kind, "soft": soft_max, "hard": hard_max}


def _bounding() -> int:
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return next((int(line.split()[1], 16) for line in file if line.startswith("CapBnd:")), 0)


def _call(*argv: str, quiet: bool = False) -> subprocess.CompletedProcess[str]:
    out = subprocess.DEVNULL if quiet else subprocess.PIPE
    return subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, text=True, check=False)


def _call_or_raise(*argv: str) -> None:
    answer = _call(*argv)
    if answer.returncode != 0:
        raise OutlastError(f"could not prepare the container: {_last_line(answer)}")


def _last_line(answer: subprocess.CompletedProcess[str]) -> str:
    lines = ((answer.stderr or "") + (answer.stdout or "")).strip().splitlines()
    return lines[-1] if lines else f"exit code {answer.returncode}, no output"
