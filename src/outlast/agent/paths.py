"""The folders of an attempt on its machine, and the environment and arguments of its command."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping

import msgspec

import outlast
from outlast.runs.folder_listing import newest_path
from outlast.spec import command
from outlast.spec.command import render_param
from outlast.spec.spec import Spec
from outlast.workspace import RunRequest

# Variables of the machine that the command inherits; the agent's own settings are not among them.
_INHERITED = (
    *("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "TZ", "USER", "LOGNAME", "SHELL", "LD_LIBRARY_PATH"),
    *("CUDA_VISIBLE_DEVICES", "SSL_CERT_FILE", "OUTLAST_MACHINE"),
    *("GCE_METADATA_HOST", "GCE_METADATA_IP", "AWS_EC2_METADATA_SERVICE_ENDPOINT"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
)


# Where an image has its Python packages (`images/steps.py`).
ENVIRONMENTS = ("~/.outlast/env/bin", "/opt/outlast/env/bin")


class AttemptPaths(msgspec.Struct, frozen=True, kw_only=True):
    """The folders of one attempt."""

    home: str
    code: str
    checkpoints: str
    outputs: str
    cache: str
    notice_file: str
    done_file: str
    metrics_file: str = ""

    def make(self) -> None:
        for folder in (self.code, self.checkpoints, self.outputs, self.cache, os.path.dirname(self.notice_file)):
            os.makedirs(folder, exist_ok=True)
        saving = os.path.join(os.path.dirname(self.metrics_file), "saving.json")
        for file in (self.notice_file, self.done_file, self.metrics_file, saving):
            if os.path.exists(file):
                os.unlink(file)

    def put_notice(self, why: str, grace_s: float, *, now: float) -> None:
        """Write the notice for programs that poll a file instead of handling a signal. Raises OSError."""
        body = msgspec.json.encode({"why": why, "grace_s": grace_s, "deadline": now + grace_s})
        with open(self.notice_file, "wb") as file:
            file.write(body)


def paths_for(request: RunRequest, home: str, *, cache: str) -> AttemptPaths:
    code = os.path.join(home, "work")
    checkpoint = request.spec.checkpoint.path
    # A container mounts the folder of these files, which must not be the machine's home.
    signals = os.path.join(home, "signals") if request.spec.machine.container else home
    return AttemptPaths(
        home=home,
        code=code,
        checkpoints=os.path.join(code, checkpoint) if checkpoint else os.path.join(home, "checkpoints"),
        outputs=os.path.join(code, request.spec.output_path),
        cache=cache or os.path.join(home, "cache"),
        notice_file=os.path.join(signals, "notice.json"),
        done_file=os.path.join(signals, "done.json"),
        metrics_file=os.path.join(signals, "metrics.jsonl"),
    )


def environment_for(
    request: RunRequest,
    paths: AttemptPaths,
    *,
    attempt: int,
    resumed: bool,
    machine: Mapping[str, str],
    secrets: Mapping[str, str],
    local: bool,
    mean_life_s: float,
    packages: str = "",
    trackers: Mapping[str, str] | None = None,
    nodes: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the command's variables: the machine's basics, trackers', `[env]`, the secrets, and OUTLAST_ variables."""
    environment = {name: machine[name] for name in _INHERITED if name in machine}
    environment["PATH"] = _path(environment.get("PATH", ""), machine.get("HOME", ""), request.path if local else "")
    if packages:
        environment["PATH"] = os.path.join(packages, "bin") + os.pathsep + environment["PATH"]
        environment["VIRTUAL_ENV"] = packages
    environment["PYTHONUNBUFFERED"] = "1"  # else a preempted program loses its last lines
    environment.update(trackers or {})
    environment.update(nodes or {})
    environment.update(request.spec.env)
    environment.update(secrets)
    environment.update(
        OUTLAST_RUN=request.run,
        OUTLAST_ATTEMPT=str(attempt),
        OUTLAST_CHECKPOINT_DIR=paths.checkpoints,
        OUTLAST_OUTPUT_DIR=paths.outputs,
        OUTLAST_RESUME="1" if resumed else "0",
        OUTLAST_NOTICE_FILE=paths.notice_file,
        OUTLAST_DONE_FILE=paths.done_file,
        OUTLAST_METRICS_FILE=paths.metrics_file,
        OUTLAST_MEAN_LIFE_S=f"{mean_life_s:.0f}",
        OUTLAST_PARAMS=msgspec.json.encode(request.spec.params).decode(),
        # For outlast's own commands: a worker of a sweep finds the agent's outlast by these two.
        OUTLAST_AGENT_PYTHON=sys.executable,
        OUTLAST_AGENT_PATH=os.path.dirname(os.path.dirname(outlast.__file__)),
    )
    for name, value in request.spec.params.items():
        variable = "OUTLAST_PARAM_" + "".join(c if c.isalnum() else "_" for c in name).upper()
        environment[variable] = render_param(value)
    return environment


def _path(path: str, home: str, submitters: str) -> str:
    """Return PATH. On the local cloud, whose base image is the user's computer, the user's PATH follows the machine's
    own programs (`shutdown` must shut down the machine)."""
    own, _, rest = path.partition(os.pathsep) if submitters else ("", "", path)
    if own == os.path.dirname(sys.executable) and any(map(_is_environments, submitters.split(os.pathsep))):
        own, rest = "", path  # the user's activated environment precedes the Python of outlast
    folders = (folder.replace("~", home, 1) for folder in ENVIRONMENTS)
    found = [folder for folder in folders if os.path.isdir(folder)]
    # The image's packages come first: the Python of outlast may be the next, and does not have them.
    return os.pathsep.join(filter(None, (*found, own, submitters, rest)))


def image_environment(home: str) -> str:
    """Return the folder of the Python packages that the machine's image has; empty if it has none."""
    folders = (os.path.dirname(folder.replace("~", home, 1)) for folder in ENVIRONMENTS)
    return next((folder for folder in folders if os.path.exists(os.path.join(folder, "bin", "python"))), "")


def _is_environments(folder: str) -> bool:
    """Return whether the folder holds the programs of a virtual environment other than outlast's own."""
    above = os.path.dirname(folder.rstrip("/"))
    marks = (os.path.join(above, "pyvenv.cfg"), os.path.join(above, "conda-meta"))
    return folder.rstrip("/") != os.path.dirname(sys.executable) and any(map(os.path.exists, marks))


def argv_for(spec: Spec, paths: AttemptPaths) -> list[str]:
    """Return the command line: the command, after the set-up if there is one."""

    def newest(pattern: str) -> str:
        return newest_path(pattern, root=paths.code, checkpoints=paths.checkpoints)

    argv = command.argv_of(spec.command, spec.params, newest=newest)
    if not spec.setup:
        return argv
    # One shell for both: a set-up that fails ends the attempt before the command runs.
    return ["/bin/bash", "-c", '/bin/bash -c "$0" || exit $?\nexec "$@"', "set -e\n" + spec.setup, *argv]


def full_disk(paths: AttemptPaths) -> str:
    """Return a remark if the machine's disk is full, which may have ended the command; else empty."""
    try:
        usage = shutil.disk_usage(paths.code)
    except OSError:
        return ""
    full = usage.free < max(16 << 20, usage.total // 1000)
    return "; its disk is full: raise `[machine] disk`" if full else ""
