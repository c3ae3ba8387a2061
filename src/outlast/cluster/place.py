"""Where things are on a machine of a cluster: our folder, Ray's program, the desk that commands from outside call."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping

import msgspec

from outlast.agent.instance import GceInstance
from outlast.errors import OutlastError

RAY_MIN = (2, 60)
# Below the home of root, who runs everything on a machine of a cluster.
FOLDER = ".outlast/cluster"
_ENGINE_VARIABLES = ("RAY_", "PATH", "PYTHONPATH", "STORAGE_EMULATOR_HOST", "CLOUDSDK_", "GCE_METADATA", "GOOGLE_")


class Place(msgspec.Struct, kw_only=True):
    """One machine's."""

    machine: str
    role: str
    kind: str
    address: str
    home: str
    broker: str = ""
    ray: str = ""

    @staticmethod
    def of(instance: GceInstance) -> Place:
        return Place(
            machine=instance.value("instance/name"),
            role=instance.attribute("outlast-role"),
            kind=instance.attribute("outlast-kind", "head"),
            address=instance.value("instance/network-interfaces/0/ip"),
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

    def write_token(self, token: str) -> None:
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        handle = os.open(self.token, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(token)

    def find_ray(self) -> None:
        """Ray's program, new enough. Raises OutlastError with the way to get it."""
        beside = os.path.join(os.path.dirname(sys.executable), "ray")
        found = beside if os.access(beside, os.X_OK) else shutil.which("ray")
        hint = 'build an image that has it: `pip = ["ray[default]>=2.60"]` in `[image]`'
        if not found:
            raise OutlastError("there is no `ray` on this machine", hint=hint)
        said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False, timeout=120).stdout
        version = re.search(r"(\d+)\.(\d+)\.\S*", said)
        if version is None or (int(version[1]), int(version[2])) < RAY_MIN:
            raise OutlastError(f"{found} is {said.strip() or 'no Ray'}; 2.60 or newer is needed", hint=hint)
        self.ray = found

    def python_path(self, before: str) -> list[str]:
        """Where Ray's own Python finds us and what we need; the autoscaler imports our provider."""
        import outlast

        own = os.path.dirname(os.path.dirname(os.path.abspath(outlast.__file__)))
        needed = [own]
        if os.path.dirname(self.ray) != os.path.dirname(sys.executable):
            needed.append(os.path.dirname(os.path.dirname(os.path.abspath(msgspec.__file__))))
        return list(dict.fromkeys([*needed, *(path for path in before.split(os.pathsep) if path)]))

    def write_desk(self, variables: Mapping[str, str], *, workspace: str, cluster: str) -> None:
        """A program for whoever comes in by ssh: the same variables, the same Python. Only root may read it."""
        kept = {name: value for name, value in variables.items() if name.startswith(_ENGINE_VARIABLES)}
        lines = [f"export {name}={shlex.quote(value)}" for name, value in sorted(kept.items())]
        handle = os.open(f"{self.folder}/environment", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write("\n".join(lines) + "\n")
        python = os.path.join(os.path.dirname(self.ray), "python3")
        python = python if os.path.exists(python) else sys.executable
        words = [python, "-P", "-m", "outlast.cluster.desk", workspace, cluster, self.machine]
        with open(f"{self.folder}/desk", "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\n. {shlex.quote(self.folder)}/environment\nexec {shlex.join(words)} "$@"\n')
        os.chmod(f"{self.folder}/desk", 0o700)
