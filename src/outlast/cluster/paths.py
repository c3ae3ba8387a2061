"""Paths and generated programs on a cluster's machine: our folder, Ray's program, the entry points for ssh."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping

import msgspec

from outlast.agent.instance import Instance
from outlast.cluster.record import PORT
from outlast.errors import OutlastError

RAY_MIN = (2, 60)
# Below the home of root, which runs everything on a cluster's machine.
FOLDER = ".outlast/cluster"
_KEPT_PREFIXES = (
    *("RAY_", "PATH", "PYTHONPATH", "STORAGE_EMULATOR_HOST", "CLOUDSDK_", "GCE_METADATA", "GOOGLE_"),
    *("AWS_", "AUTOSCALER_"),
)
_HINT = "list `ray[default]>=2.60` in requirements.txt or uv.lock, or build an image with Ray"
_HINT_INSIDE = "use an image with Ray, such as rayproject/ray:2.60.0"
# Prints Ray's path, interpreter and version. `ray --version` is the fallback: it loads all of Ray, 2 s of CPU time.
_FIND_RAY = r"""
ray="$(command -v ray)" || { echo "no such program in $PATH" >&2; exit 1; }
read -r first < "$ray"
python="${first#\#!}"
case "$python" in *python*) ;; *) python="$(dirname "$ray")/python3" ;; esac
[ -x "$python" ] || python="$(command -v python3)"
printf '%s\n%s\n' "$ray" "$python"
"$python" -c 'from importlib.metadata import version; print(version("ray"))' 2>/dev/null || "$ray" --version
"""


class NodePaths(msgspec.Struct, kw_only=True):
    """The paths of one machine, and the identity of its node."""

    machine: str
    role: str
    kind: str
    address: str
    home: str
    broker: str = ""
    # The folder of the packages that outlast installed; empty: those of the image.
    environment: str = ""
    ray: str = ""
    # The Python in which Ray is installed; it may differ from ours.
    python: str = ""
    # The argv prefix that runs a command in Ray's container; empty without a container.
    inner: tuple[str, ...] = ()

    @staticmethod
    def of(instance: Instance) -> NodePaths:
        return NodePaths(
            machine=instance.attribute("outlast-machine"),
            role=instance.attribute("outlast-role"),
            kind=instance.attribute("outlast-kind", "head"),
            address=instance.address(),
            home=os.environ.get("HOME", "") or "/root",
            broker=instance.attribute("outlast-broker"),
        )

    @property
    def folder(self) -> str:
        return f"{self.home}/{FOLDER}"

    @property
    def token(self) -> str:
        return f"{self.folder}/token"

    @property
    def code(self) -> str:
        return f"{self.home}/code"

    def at(self, path: str) -> str:
        """Expand `~` in a path of the cluster file to root's home."""
        return self.home + path[1:] if path.startswith("~/") else path

    def write_token(self, token: str) -> None:
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        handle = os.open(self.token, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(token)

    @property
    def socket(self) -> str:
        """The socket on which the head's program serves Ray's autoscaler."""
        return f"{self.folder}/nodes"

    def enter(self, workdir: str) -> list[str]:
        """Return the argv prefix that runs a command where Ray runs, with Ray's environment, in that folder."""
        run = f'. {shlex.quote(self.folder)}/environment; cd "$0" && exec "$@"'
        return [*self.inner, "/bin/sh", "-c", run, workdir]

    def find_ray(self) -> None:
        """Find Ray's program and its Python. Raises OutlastError if Ray is missing or too old."""
        # Prefer the Ray of the cluster's environment, then one that is installed next to outlast.
        own = [os.path.join(self.environment, "bin")] if self.environment else []
        path = os.pathsep.join([*own, os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
        answer = subprocess.run(
            [*(self.enter("/") if self.inner else ()), "/bin/sh", "-c", _FIND_RAY],
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        where = "in the container" if self.inner else "on this machine"
        hint = _HINT_INSIDE if self.inner else _HINT
        found, python, *output = [*answer.stdout.splitlines(), "", ""]
        if answer.returncode != 0 or not found:
            raise OutlastError(f"`ray` not found {where}: {answer.stderr.strip()[-300:]}", hint=hint)
        version = re.search(r"(\d+)\.(\d+)\.\S*", "\n".join(output))
        if version is None or (int(version[1]), int(version[2])) < RAY_MIN:
            shown = f"has version {version[0]}" if version else "has no version"
            raise OutlastError(f"{found} {where} {shown}; Ray 2.60 or newer is required", hint=hint)
        self.ray, self.python = found, python
        if self.inner:
            self.ray = f"{self.folder}/ray"
            _write_program(self.ray, f'exec {shlex.join(self.enter(self.home))} {shlex.quote(found)} "$@"\n')

    def write_library(self) -> str:
        """Copy the modules that Ray's Python imports, and return their folder."""
        library = f"{self.folder}/lib"
        os.makedirs(library, exist_ok=True)
        for copy, source in (("outlast_provider.py", "provider.py"), ("outlast_rayclient.py", "rayclient.py")):
            shutil.copyfile(os.path.join(os.path.dirname(__file__), source), f"{library}/{copy}")
        return library

    def write_environment(self, variables: Mapping[str, str], own: Mapping[str, str]) -> None:
        """Write Ray's variables and those of the cluster file as a shell script that only root can read."""
        kept = {name: value for name, value in variables.items() if name.startswith(_KEPT_PREFIXES)}
        if self.inner:
            # Keep the image's PATH, but the machine's home: mounts are below it.
            kept = {name: value for name, value in kept.items() if name != "PATH"} | {"HOME": self.home}
        lines = [f"export {name}={shlex.quote(value)}" for name, value in sorted({**kept, **own}.items())]
        handle = os.open(f"{self.folder}/environment", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write("\n".join(lines) + "\n")

    def write_head_programs(self, *, workspace: str, cluster: str) -> None:
        """Write the programs that ssh sessions call: `head_rpc`, and `shell`, which runs a command where Ray runs."""
        client = [*self.enter(self.home), self.python, f"{self.folder}/lib/outlast_rayclient.py"]
        client += [f"{self.address}:{PORT}"]
        rpc = [sys.executable, "-P", "-m", "outlast.cluster.head_rpc", workspace, cluster, f"{self.folder}/jobs"]
        own = os.environ.get("PYTHONPATH", "")
        mine = f"export PYTHONPATH={shlex.quote(own)}" if own else "unset PYTHONPATH"
        lines = [f'if [ "$1" = submit ]; then . {shlex.quote(self.folder)}/environment; {mine}']
        lines += [f'exec {shlex.join(rpc)} "$2" {shlex.join(client)}; fi', f'exec {shlex.join(client)} "$@"']
        _write_program(f"{self.folder}/head_rpc", "\n".join(lines) + "\n")
        inside = shlex.join(self.enter(self.home))
        terminal = shlex.join([*_with_terminal(self.inner), *self.enter(self.home)[len(self.inner) :]])
        lines = [f'[ -t 0 ] && exec {terminal} bash -c "$1"', f'exec {inside} bash -c "$1"']
        _write_program(f"{self.folder}/shell", "\n".join(lines) + "\n")


def _with_terminal(inner: tuple[str, ...]) -> list[str]:
    """Return the prefix with a terminal: `-it` for docker and podman, `-t` for runc."""
    argv = ["-it" if word == "-i" else word for word in inner]
    if inner and "-it" not in argv:
        argv.insert(argv.index("exec") + 1, "-t")
    return argv


def _write_program(path: str, body: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"#!/bin/sh\n{body}")
    os.chmod(path, 0o700)
