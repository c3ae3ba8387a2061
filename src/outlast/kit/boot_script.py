"""Boot scripts of machines that do not share this computer's files: fetch the agent kit, then start a program."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from importlib import resources

from outlast.code.wheel import store_wheel
from outlast.kit.libraries import store_libraries, store_uv
from outlast.store.bucket import Bucket

# During a shutdown systemd stops a unit before those that it is ordered after: the program needs the network, mounted
# volumes and containers for its last save. `mixed` sends SIGTERM to the program alone; without `continue`, a
# process that the kernel kills for lack of memory would end the program, too. Old versions refuse some of these
# properties, hence the trial. Machines of the local cloud share the systemd of their host and must not use it.
_UNIT = (
    "systemd-run --quiet --wait --collect"
    " -p 'After=network-online.target network.target nss-lookup.target systemd-resolved.service remote-fs.target"
    " containerd.service docker.service'"
    " -p KillMode=mixed -p TimeoutStopSec=150 -p OOMPolicy=continue -p TasksMax=infinity -p Delegate=yes"
    " -p StandardOutput=journal+console -p StandardError=journal+console"
)
_PROGRAM = r"""
log "starting the {name}"
start=()
if [ -z "$OUTLAST_MACHINE" ] && {unit} true 2>/dev/null; then
    start=({unit} --unit=outlast-{name})
    for variable in $(compgen -e); do start+=("--setenv=$variable=${!variable}"); done
fi
"${start[@]}" "$python" -P -m {module}
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
    return _prepare(settings or {}) + before + program_script(name, module)


def program_script(name: str, module: str) -> str:
    """Return the end of the script: start the module, as a systemd unit if possible, and wait for its end."""
    return _PROGRAM.replace("{unit}", _UNIT).replace("{name}", name).replace("{module}", module)


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
