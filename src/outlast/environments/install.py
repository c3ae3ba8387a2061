"""Installation of a recorded environment on a machine: from its disk, else from the workspace, else built with uv.

The first machine that builds an environment stores it packed; later machines unpack it and need no package index.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from outlast.code.bundle import zstd_module
from outlast.code.environment import EnvironmentRecord
from outlast.errors import Missing, OutlastError
from outlast.kit.uv import reason_of
from outlast.store.bucket import Bucket

# Written last: an environment without it was cut off while it was made.
_COMPLETE = ".outlast-complete"
_NETWORK = re.compile(
    r"error sending request|dns error|timed out|connection refused|Failed to fetch|Could not connect|status code 5\d\d",
    re.IGNORECASE,
)
_PYTHON_HINT = "set [environment] python to a version that the image has, or choose another image"

Report = Callable[[str], None]


class EnvironmentFailed(OutlastError):
    """The environment could not be installed. `permanent`: another machine of this kind would fail as well."""

    def __init__(self, message: str, *, hint: str = "", permanent: bool = True) -> None:
        super().__init__(message, hint=hint)
        self.permanent = permanent


class Interpreter(msgspec.Struct, frozen=True, kw_only=True):
    """A Python of this machine."""

    path: str
    version: str

    @property
    def tag(self) -> str:
        """Return the platform of environments that are made with it. They refer to its path."""
        place = hashlib.sha256(self.path.encode()).hexdigest()[:8]
        return f"linux-{platform.machine()}-python{self.version}-{place}"


class Installer:
    """Installs one environment below `root`. `uv` returns the path of the uv program; it is called only if needed."""

    def __init__(
        self, bucket: Bucket, record: EnvironmentRecord, *, root: str, uv: Callable[[], str], report: Report
    ) -> None:
        self.bucket = bucket
        self.record = record
        self.root = root
        self.path = os.path.join(root, "environments", record.short)
        self._uv = uv
        self._report = report
        self._python: Interpreter | None = None
        # The environment was built here and is not in the workspace yet.
        self.built = False

    def install(self) -> str:
        """Return the path of the environment. May be repeated. Raises EnvironmentFailed."""
        name = self.record.describe()
        if os.path.exists(os.path.join(self.path, _COMPLETE)):
            self._report(f"environment: {name}: on this machine already")
            return self.path
        shutil.rmtree(self.path, ignore_errors=True)
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        if self.record.kind == "conda":
            self._build_conda()
        elif self.record.packages and self._fetch():
            self._report(f"environment: {name}: from the workspace")
            return self.path
        else:
            self._report(f"environment: {name}: building")
            self._build()
        with open(os.path.join(self.path, _COMPLETE), "w", encoding="ascii"):
            pass
        self.built = bool(self.record.packages)
        return self.path

    def store(self) -> None:
        """Store an environment that was built here, unless another machine was first. May take minutes."""
        key = self.record.archive_key(self.python().tag)
        with suppress(Missing):
            self.bucket.head(key)
            return
        draft = self.path + ".tar.zst"
        try:
            with zstd_module().open(draft, "wb") as packed, tarfile.open(fileobj=packed, mode="w|") as archive:
                archive.add(self.path, arcname=".")
            self.bucket.upload(key, draft)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(draft)
        self.built = False

    def python(self) -> Interpreter:
        """Return the Python for the environment: of the recorded version, else one that the lock allows.

        A Python of the image comes before one that uv would have to download. Raises EnvironmentFailed.
        """
        if self._python is None:
            wanted, oldest = self.record.python, self.record.python_min
            found = self._find(wanted, "--no-python-downloads")
            if found is None and oldest != wanted:
                found = self._find(f">={oldest},<3.15", "--no-python-downloads")
            if found is None:
                self._report(f"environment: this image has no Python {wanted}: downloading it")
                self._run_uv("python", "install", "--quiet", wanted, what=f"Python {wanted}", hint=_PYTHON_HINT)
                found = self._find(wanted, "--managed-python")
            if found is None:
                raise EnvironmentFailed(f"Python {wanted} is not on this machine", hint=_PYTHON_HINT)
            self._python = found
        return self._python

    def _find(self, version: str, *options: str) -> Interpreter | None:
        done = self._call_uv("python", "find", "--system", *options, version)
        path = done.stdout.strip()
        if done.returncode or not path:
            return None
        asked = "import platform; print(platform.python_version())"
        answer = subprocess.run([path, "-c", asked], capture_output=True, text=True, check=False)
        return Interpreter(path=path, version=answer.stdout.strip()) if answer.returncode == 0 else None

    def _fetch(self) -> bool:
        """Unpack the environment from the workspace; False if it is not there."""
        archive = self.path + ".fetched"
        try:
            self.bucket.download(self.record.archive_key(self.python().tag), archive)
            with zstd_module().open(archive, "rb") as packed, tarfile.open(fileobj=packed, mode="r|") as members:
                # Environments link to the machine's Python, outside of their folder.
                extract_trusted(members, self.path)
        except Missing:
            return False
        except (tarfile.TarError, EOFError, zstd_module().ZstdError) as problem:
            self._report(f"environment: the copy in the workspace is damaged and is built again: {problem}")
            shutil.rmtree(self.path, ignore_errors=True)
            return False
        finally:
            with suppress(FileNotFoundError):
                os.unlink(archive)
        return True

    def _build(self) -> None:
        # Relocatable: later machines may unpack it elsewhere. `--seed`, for pip, would need a package index.
        options = ("--quiet", "--relocatable", "--python", self.python().path)
        self._run_uv("venv", *options, self.path, what="creating the environment")
        if not self.record.packages:
            return
        lock = self.path + ".lock"
        with open(lock, "wb") as file:
            file.write(self.bucket.get(self.record.lock_key))
        target = ("--python", os.path.join(self.path, "bin", "python"))
        self._run_uv(
            *("pip", "install", "--quiet", "--no-deps", *target, "--requirement", lock),
            what=f"installing {self.record.file}",
            hint="give machines access to the package index, or build an image: `outlast image build`",
        )
        os.unlink(lock)

    def _build_conda(self) -> None:
        program = next((found for name in ("micromamba", "mamba", "conda") if (found := shutil.which(name))), None)
        if program is None:
            raise EnvironmentFailed(
                f"{self.record.file}: this image has neither micromamba nor conda",
                hint="choose an image that has one, or list the packages in requirements.txt",
            )
        listed = self.path + ".yml"
        with open(listed, "wb") as file:
            file.write(self.bucket.get(self.record.lock_key))
        command = "create" if "mamba" in os.path.basename(program) else "env"
        arguments = [program, command, *(["create"] if command == "env" else ["--yes"]), "--prefix", self.path]
        done = subprocess.run([*arguments, "--file", listed], capture_output=True, text=True, check=False)
        if done.returncode:
            raise _failed(f"installing {self.record.file}", done.stderr or done.stdout, hint="")

    def _run_uv(self, *arguments: str, what: str, hint: str = "") -> None:
        done = self._call_uv(*arguments)
        if done.returncode:
            raise _failed(what, done.stderr, hint=hint)

    def _call_uv(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        settings = {
            "UV_PYTHON_INSTALL_DIR": os.path.join(self.root, "python"),
            "UV_CACHE_DIR": os.path.join(self.root, "uv-cache"),
            # The cache and the environment may be on different disks.
            "UV_LINK_MODE": "copy",
            "UV_NO_CONFIG": "1",
            # Certificates of the image: a proxy or a mirror may have its own.
            "UV_SYSTEM_CERTS": "1",
            "UV_NATIVE_TLS": "1",
        }
        # The agent's own libraries must not reach another Python.
        own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        return subprocess.run(
            [self._uv(), *arguments], env={**own, **settings}, capture_output=True, text=True, check=False
        )


def extract_trusted(archive: tarfile.TarFile, folder: str) -> None:
    """Extract an archive that outlast itself wrote."""
    # Debian 12 has Python 3.11.2, whose `extractall` knows no filters; newer ones forbid links without one.
    options: dict[str, Any] = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
    archive.extractall(folder, **options)


def _failed(what: str, output: str, *, hint: str) -> EnvironmentFailed:
    reason = reason_of(output)
    network = bool(_NETWORK.search(reason))
    return EnvironmentFailed(f"{what}: {reason}", hint=hint, permanent=not network)
