"""Finds the isolation modes that work on this computer, by trying them: settings do not predict it reliably.

    python -m outlast.clouds.local.probe MODE

boots a machine that ends at once. It prints nothing if the mode works, else the reason.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from outlast import private
from outlast.clouds.local.files import read_json, write_json
from outlast.clouds.local.folder import Folder
from outlast.clouds.local.isolation import MODES as MODES
from outlast.clouds.local.isolation import isolation
from outlast.errors import BadRequest

_known: dict[str, str] = {}
_trying = threading.Lock()


def why_not(mode: str, *, root: str) -> str:
    """Return why the mode does not work; empty if it does. Tried once per boot of this computer, then cached."""
    if mode not in MODES:
        raise BadRequest(f"unknown mode `{mode}` of the local cloud", hint="modes are " + ", ".join(MODES))
    if mode == "plain":
        return ""
    with _trying:
        return _why_not(mode, root)


def _why_not(mode: str, root: str) -> str:
    if mode not in _known:
        path, host = f"{root}/mode.json", _host_fingerprint()
        remembered = read_json(path) or {}
        answers = remembered.get("why_not") if remembered.get("host") == host else {}
        answers = answers if isinstance(answers, dict) else {}
        if mode not in answers:
            answers = {**answers, mode: _try_in_subprocess(mode)}
            os.makedirs(private.prepare(root), mode=0o700, exist_ok=True)
            write_json(path, {"host": host, "why_not": answers})
        _known[mode] = str(answers[mode])
    return _known[mode]


def best_mode(*, root: str) -> str:
    return next(mode for mode in MODES if not why_not(mode, root=root))


def _host_fingerprint() -> str:
    """Return everything that the result depends on: the boot of this computer, the user, the namespaces."""
    facts = [str(os.geteuid()), sys.executable]
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            facts.append(file.read().strip())
        facts.append(os.readlink("/proc/self/ns/user"))
        facts.append(os.readlink("/proc/self/ns/mnt"))
    except OSError:
        facts.append(sys.platform)
    return " ".join(facts)


def _try_in_subprocess(mode: str) -> str:
    """Try in a subprocess: forking a process with threads is not safe."""
    if sys.platform != "linux":
        return "it needs Linux"
    if mode == "root" and os.geteuid() != 0:
        return "it needs root"
    if mode == "userns" and os.geteuid() == 0:
        return "root uses mode `root`"
    command = [sys.executable, "-m", "outlast.clouds.local.probe", mode]
    try:
        tried = subprocess.run(command, env=shim_environment(), capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the trial itself failed: {error}"
    if tried.returncode == 0:
        return ""
    return (tried.stdout + tried.stderr).strip() or f"the trial ended with {tried.returncode}"


def shim_environment() -> dict[str, str]:
    """Return the environment of the processes that run our own modules, without the user's secrets."""
    kept = {name: os.environ[name] for name in ("LANG", "PATH", "PYTHONPATH") if name in os.environ}
    # Unlike an installed package, a source tree is not on the path of a new interpreter.
    source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    if not source.endswith("-packages"):
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, [source, kept.get("PYTHONPATH", "")]))
    return kept


def main(mode: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="outlast-probe-") as root:
        folder = Folder(f"{root}/machines/probe")
        for name in ("disk", "scripts", "ssh"):
            os.makedirs(f"{folder.path}/{name}")
        write_json(f"{folder.path}/machine.json", {"id": os.getpid(), "mode": mode})
        folder.set_state(phase="starting")
        tried = isolation(mode)
        try:
            running = tried.boot(folder, lambda _inside, _died, _end: os._exit(0))
            code = os.waitstatus_to_exitcode(os.waitpid(running.init_pid, 0)[1])
        except OSError as error:
            sys.exit(str(error))
        finally:
            tried.kill()
    sys.exit(1 if code else 0)


if __name__ == "__main__":
    main(sys.argv[1])
