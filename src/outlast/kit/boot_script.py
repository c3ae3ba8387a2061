"""Boot scripts of machines that do not share this computer's files: fetch the agent kit, then start a program."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from importlib import resources

from outlast.code.wheel import store_wheel
from outlast.kit.libraries import store_libraries, store_uv
from outlast.store.bucket import Bucket

_PROGRAM = r"""
log "starting the {name}"
"$python" -P -m {module}
log "the {name} ended with $?; switching off"
shutdown -h now
"""
# Restart the supervisor whenever it ends while the machine lives.
_SUPERVISOR = r"""
log "starting the supervisor"
while :; do
    "$python" -P -m outlast.cli supervise {argv}
    log "the supervisor ended with $?; restarting it in 10 s"
    sleep 10
done
"""


def boot_script(name: str, module: str, *, before: str = "", settings: Mapping[str, str] | None = None) -> str:
    """Return the script that starts a module and switches the machine off when it ends.

    `before` are commands that run first, `settings` environment variables.
    """
    return _prepare(settings or {}) + before + _PROGRAM.format(name=name, module=module)


def supervisor_script(cloud: str, machine: str, *, workspace_url: str, settings: Mapping[str, str]) -> str:
    """Return the script of a supervisor machine; `settings` are environment variables for the supervisor."""
    argv = shlex.join(["--workspace", workspace_url, "--supervisor-vm", f"{cloud}/{machine}"])
    return _prepare(settings) + _SUPERVISOR.replace("{argv}", argv)


def metadata(bucket: Bucket, *, extra: str = "") -> dict[str, str]:
    """Return the metadata from which the script learns where the kit is; store the kit if it is not there.

    `extra` adds the client of a cloud's API, for machines that launch others. Raises OutlastError.
    """
    return {
        "outlast-wheel": f"{bucket.url}/{store_wheel(bucket)}",
        "outlast-libraries": f"{bucket.url}/{store_libraries(bucket, extra=extra)}",
        "outlast-uv": f"{bucket.url}/{store_uv(bucket)}",
    }


def _prepare(settings: Mapping[str, str]) -> str:
    # The fetching program is a tested module of ours, sent as text.
    fetch = resources.files("outlast.code").joinpath("bootstrap.py").read_text("utf-8")
    script = resources.files("outlast.kit").joinpath("boot.sh").read_text("utf-8").replace("@FETCH@", fetch)
    head, newline, rest = script.partition("\n")
    # User data of EC2 has a limit: send no comments.
    rest = "".join(line for line in rest.splitlines(keepends=True) if not line.lstrip().startswith("# "))
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in settings.items())
    return head + newline + exports + rest
