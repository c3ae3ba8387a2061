"""Which mode this computer allows, found by trying, never by asking: settings say little about what really works.

python -m outlast.clouds.local.probe    tries `pidns`; prints nothing if it works, else what failed
"""

from __future__ import annotations

import os
import subprocess
import sys

from outlast.clouds.local.files import read_json, write_json
from outlast.clouds.local.isolation import isolation
from outlast.errors import BadRequest

# Best first. The last one always works.
MODES = ("pidns", "plain")
_known: dict[str, str] = {}


def why_not(mode: str, *, root: str) -> str:
    """What stands against the mode; empty when it works. Tried once a process, and once a boot of the computer."""
    if mode not in MODES:
        raise BadRequest(f"the local cloud has no mode `{mode}`", hint="modes are " + ", ".join(MODES))
    if mode == "plain":
        return ""
    if mode not in _known:
        path, circumstances = f"{root}/mode.json", _circumstances()
        remembered = read_json(path) or {}
        if remembered.get("circumstances") != circumstances:
            remembered = {"circumstances": circumstances, "why_not": _try_apart()}
            os.makedirs(root, exist_ok=True)
            write_json(path, remembered)
        _known[mode] = str(remembered["why_not"])
    return _known[mode]


def best_mode(*, root: str) -> str:
    return next(mode for mode in MODES if not why_not(mode, root=root))


def _circumstances() -> str:
    """What the answer depends on: the computer since it was switched on, the user, the namespace we are in."""
    facts = [str(os.geteuid()), sys.executable]
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            facts.append(file.read().strip())
        facts.append(os.readlink("/proc/self/ns/user"))
        facts.append(os.readlink("/proc/self/ns/mnt"))
    except OSError:
        facts.append(sys.platform)
    return " ".join(facts)


def _try_apart() -> str:
    """Try in a process of its own: forking a program that has threads is not safe."""
    if sys.platform != "linux":
        return "it needs Linux"
    command = [sys.executable, "-m", "outlast.clouds.local.probe"]
    try:
        tried = subprocess.run(
            command, env=keeper_environment(), capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the trial itself failed: {error}"
    if tried.returncode == 0:
        return ""
    return (tried.stdout + tried.stderr).strip() or f"the trial ended with {tried.returncode}"


def keeper_environment() -> dict[str, str]:
    """The environment of processes that we start with our own interpreter: none of the user's secrets is in it."""
    kept = {name: os.environ[name] for name in ("LANG", "PATH", "PYTHONPATH") if name in os.environ}
    # A source tree is not on the path of a new interpreter, as an installed package is.
    source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    if not source.endswith("-packages"):
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, [source, kept.get("PYTHONPATH", "")]))
    return kept


def main() -> None:
    tried = isolation("pidns")
    try:
        init_pid = tried.boot("outlast-probe", lambda _died, _end: os._exit(0))
    except OSError as error:
        sys.exit(str(error))
    if os.waitstatus_to_exitcode(os.waitpid(init_pid, 0)[1]) != 0:
        sys.exit(1)


if __name__ == "__main__":
    main()
