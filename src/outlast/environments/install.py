"""Installation of a recorded environment on a machine: from its disk, else from the workspace, else built with uv.

The first machine that builds an environment stores it packed; later machines unpack it and need no package index.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from outlast.code.environment import EnvironmentRecord
from outlast.environments import archive
from outlast.environments.complete import complete, create_plain
from outlast.environments.detect import conda_program
from outlast.environments.pythons import FOLDER, fetch_python, mark_python_used, store_python
from outlast.errors import Missing, OutlastError
from outlast.kit.uv import NETWORK, reason_of
from outlast.store.bucket import Bucket

# Written last: an environment without it was cut off while it was made.
COMPLETE = ".outlast-complete"
_PYTHON_HINT = (
    "set [environment] python to a version that the image has, choose another image, or name a mirror of Pythons that "
    "machines reach: [environment] python_mirror"
)
_INDEX_HINT = "give machines access to the package index, or build an image: `outlast image build`"
_PROGRESS_S = 10.0
_OURS = f"{sys.version_info.major}.{sys.version_info.minor}"

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
        # uv names a Python that it installed by a link, too.
        place = hashlib.sha256(os.path.realpath(self.path).encode()).hexdigest()[:8]
        return f"linux-{platform.machine()}-python{self.version}-{place}"


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """Parts that a machine, or this computer, brings for its environments. Functions are called only if needed."""

    # Return the path of the uv program, once it is there.
    uv: Callable[[], str]
    # Return the path that uv has, or will have after a call of `uv`.
    uv_path: Callable[[], str]
    # Return the folders with outlast, and with its libraries for a Python such as `3.12`.
    library: Callable[[str], Sequence[str]]
    # Install git if it is missing: a requirement is a repository.
    git: Callable[[], None] = lambda: None
    # Settings of uv.
    settings: dict[str, str] = {}


class Installer:
    """Installs one environment below `root`. `progress` receives more messages than `report`, while they are new."""

    def __init__(
        self,
        bucket: Bucket,
        record: EnvironmentRecord,
        *,
        root: str,
        tools: Tools,
        report: Report,
        progress: Report = lambda _: None,
    ) -> None:
        self.bucket = bucket
        self.record = record
        self.root = root
        self.path = os.path.join(root, "environments", record.short)
        self.tools = tools
        self._report = report
        self._progress = progress
        self._python: Interpreter | None = None
        # The environment was built here and is not in the workspace yet.
        self.built = False
        # The environment came from the workspace.
        self.fetched = False
        # The same for its Python.
        self._downloaded_python = False
        self._fetched_python = False
        # The environment can be used before `tools.uv` is called.
        self.needs_uv = False

    def install(self) -> str:
        """Return the path of the environment. May be repeated, also by several processes. Raises EnvironmentFailed."""
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        with open(self.path + ".lock", "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._install()
        return self.path

    def _install(self) -> None:
        name = self.record.describe()
        marker = os.path.join(self.path, COMPLETE)
        if os.path.exists(marker):
            self._report(f"environment: {name}: cached on disk")
            with suppress(OSError):
                os.utime(marker)
                complete(self.path, self.tools.uv(), self.tools.library)
            return
        shutil.rmtree(self.path, ignore_errors=True)
        if self.record.kind == "empty" and self._fits_this_python():
            self._report(f"environment: no packages, Python {_OURS}")
            create_plain(self.path)
            complete(self.path, self.tools.uv_path(), self.tools.library)
            self.needs_uv = True
        elif self.record.kind == "conda":
            self._report(f"environment: {name}: building")
            self._build_conda()
        elif not (self.record.packages and self._fetch()):
            self._report(f"environment: {name}: building")
            began = time.monotonic()
            self._build()
            if self.record.packages:
                self._report(f"environment: built in {time.monotonic() - began:.1f} s")
                self.built = True
        if self.record.kind != "conda" and not self.needs_uv:
            complete(self.path, self.tools.uv(), self.tools.library)
        with open(marker, "w", encoding="ascii"):
            pass

    def _fits_this_python(self) -> bool:
        """Return whether `python` would find the Python that runs this: it is the preferred one, or no other is."""
        wanted, oldest = self.record.python, self.record.python_min
        if wanted == _OURS:
            return True
        others = shutil.which(f"python{wanted}") or os.path.isdir(os.path.join(self.root, FOLDER))
        return not others and _number(oldest) <= _number(_OURS)

    @property
    def is_new(self) -> bool:
        """Return whether the workspace lacks a part of this environment."""
        return self.built or self._downloaded_python

    @property
    def came_from_workspace(self) -> bool:
        return self.fetched or self._fetched_python

    def store(self) -> None:
        """Store a new environment and a new Python, unless another machine was first. May take minutes."""
        if self.built:
            archive.store(self.bucket, self.record, self.python().tag, self.path)
        if self._downloaded_python:
            store_python(self.bucket, self.record.python, self.python().path, self.root)
        self.built = self._downloaded_python = False

    def mark_used(self) -> None:
        """Record the use of what came from the workspace."""
        if self.fetched:
            archive.mark_used(self.bucket, self.record, self.python().tag)
        if self._fetched_python:
            mark_python_used(self.bucket, self.record.python)

    def python(self) -> Interpreter:
        """Return the Python for the environment: of the recorded version, else one that the lock allows.

        A Python of the image comes before one that uv would have to download. Raises EnvironmentFailed.
        """
        if self._python is None:
            wanted, oldest = self.record.python, self.record.python_min
            found = self._find(wanted, "--no-python-downloads")
            if found is None and oldest != wanted:
                found = self._find(f">={oldest},<3.15", "--no-python-downloads")
            self._python = found or self._bring_python(wanted)
        return self._python

    def _bring_python(self, wanted: str) -> Interpreter:
        """Return a Python that the image lacks: from the workspace, else downloaded. Raises EnvironmentFailed."""
        self._fetched_python = fetch_python(self.bucket, wanted, self.root, self._report)
        if self._fetched_python and (found := self._find(wanted, "--managed-python")):
            return found
        self._report(f"environment: this image has no Python {wanted}: downloading it")
        self._run_uv("python", "install", "--quiet", wanted, what=f"Python {wanted}", hint=_PYTHON_HINT)
        found = self._find(wanted, "--managed-python")
        if found is None:
            raise EnvironmentFailed(f"Python {wanted} is not on this machine", hint=_PYTHON_HINT)
        self._downloaded_python = True
        return found

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
        found = archive.find_archive(self.bucket, self.record, self.python().tag)
        if found is None:
            return False
        name = self.record.describe()
        self._report(f"environment: {name}: cached in the workspace, {found.bytes / 1e6:,.0f} MB")
        share = archive.Throttle(self._progress, every_s=_PROGRESS_S)
        try:
            archive.unpack(
                self.bucket,
                found,
                self.path,
                progress=lambda done: share(
                    f"environment: unpacked {done / found.bytes:.0%} of {found.bytes / 1e6:,.0f} MB"
                ),
            )
        except Missing:
            return False
        except archive.DamagedArchive as problem:
            self._report(f"environment: the copy in the workspace is damaged and is built again: {problem}")
            shutil.rmtree(self.path, ignore_errors=True)
            return False
        self.fetched = True
        return True

    def _build(self) -> None:
        # Relocatable: later machines may unpack it elsewhere. `--seed`, for pip, would need a package index.
        options = ("--quiet", "--relocatable", "--python", self.python().path)
        self._run_uv("venv", *options, self.path, what="creating the environment")
        if not self.record.packages:
            return
        listed = self.path + ".txt"
        body = self.bucket.get(self.record.lock_key)
        with open(listed, "wb") as file:
            file.write(body)
        if b"git+" in body:
            self.tools.git()
        target = ("--python", os.path.join(self.path, "bin", "python"))
        torch = ("--torch-backend", self.record.torch) if self.record.torch else ()
        self._run_uv(
            *("pip", "install", "--no-deps", *target, "--requirement", listed, *torch),
            what=f"installing {self.record.file}",
            hint=_INDEX_HINT,
        )
        os.unlink(listed)

    def _build_conda(self) -> None:
        program = conda_program()
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
            raise _failed(f"installing {self.record.file}", done.stderr or done.stdout, hint=_INDEX_HINT)

    def _run_uv(self, *arguments: str, what: str, hint: str = "") -> None:
        """Run uv and pass its lines about downloads on. Raises EnvironmentFailed with uv's reason."""
        with subprocess.Popen(
            [self.tools.uv(), *arguments],
            env=self._variables(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        ) as process:
            assert process.stderr is not None
            lines = []
            for line in process.stderr:
                lines.append(line)
                if line.lstrip().startswith(("Downloading ", "Building ", "Prepared ")):
                    self._progress(f"environment: {line.strip().lower()}")
        if process.returncode:
            raise _failed(what, "".join(lines), hint=hint)

    def _call_uv(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [self.tools.uv(), *arguments]
        return subprocess.run(argv, env=self._variables(), capture_output=True, text=True, check=False)

    def _variables(self) -> dict[str, str]:
        settings = {
            "UV_PYTHON_INSTALL_DIR": os.path.join(self.root, FOLDER),
            # The cache and the environment may be on different disks.
            "UV_LINK_MODE": "copy",
            # A lock has the hash of every package: the index from which it comes does not matter.
            **({"UV_INDEX_STRATEGY": "unsafe-best-match"} if self.record.kind == "uv" else {}),
            # Certificates of the image: a proxy or a mirror may have its own.
            "UV_SYSTEM_CERTS": "1",
            "UV_NATIVE_TLS": "1",
            **self.tools.settings,
        }
        # The agent's own libraries must not reach another Python.
        own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        return {**own, **settings}


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _failed(what: str, output: str, *, hint: str) -> EnvironmentFailed:
    reason = reason_of(output)
    network = bool(NETWORK.search(reason))
    return EnvironmentFailed(f"{what}: {reason}", hint=hint, permanent=not network)
