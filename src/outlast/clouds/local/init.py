"""The first process of a machine: runs the startup script, buries the dead, ends when told. Isolates nothing.

It is forked from the keeper, not executed, because an interpreter of its own would double the time to boot.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from outlast.clouds.local.folder import Folder
from outlast.clouds.local.processes import MARKER

# How init tells the keeper that the machine switched itself off.
EXIT_POWERED_OFF = 64

_BASIC_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SHELLS = ("/bin/bash", "/bin/sh")
_SWITCHES = ("shutdown", "poweroff", "halt")


def marker(folder: Folder) -> str:
    """What marks the processes of this machine among all of this computer."""
    return f"{folder.name}.{(folder.facts() or {}).get('id')}"


def environment(folder: Folder, metadata_host: str) -> dict[str, str]:
    """A clean environment: nothing of the launcher's but its language and its interpreter."""
    return {
        # The image `base` is this computer's own software, so `python` is the one that launched the machine.
        "PATH": f"{folder.path}/bin:{os.path.dirname(sys.executable)}:{_BASIC_PATH}",
        "HOME": f"{folder.disk_path}/home",
        "TMPDIR": f"{folder.disk_path}/tmp",
        "PWD": f"{folder.disk_path}/home",
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "SHELL": shell(),
        MARKER: marker(folder),
        "GCE_METADATA_HOST": metadata_host,
        "GCE_METADATA_IP": metadata_host,
    }


def prepare(folder: Folder, script: str) -> None:
    """Lay out what init needs on disk, before it is forked."""
    for place in ("disk/home", "disk/tmp", "bin"):
        os.makedirs(f"{folder.path}/{place}", exist_ok=True)
    _write_program(f"{folder.path}/startup-script", script)


def run(
    folder: Folder, metadata_host: str, *, keeper_died: Callable[[], bool], at_the_end: Callable[[], object]
) -> NoReturn:
    """Be the machine's init until it is switched off or loses its keeper."""
    watched = {signal.SIGCHLD, signal.SIGUSR1, signal.SIGTERM}
    # Blocked before anybody can send one, then taken one by one: none is lost, and no handler interrupts us.
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    _write_switches(folder)
    script = _start_script(folder, metadata_host)
    while not keeper_died():
        number = signal.sigwait(watched)
        if number == signal.SIGUSR1:
            folder.print_serial("power off")
            os._exit(EXIT_POWERED_OFF)
        if number == signal.SIGCHLD:
            _bury(folder, script)
    at_the_end()
    os._exit(1)


def _bury(folder: Folder, script: int) -> None:
    try:
        while (buried := os.waitpid(-1, os.WNOHANG))[0]:
            if buried[0] == script:
                folder.print_serial(f"startup-script exit status {os.waitstatus_to_exitcode(buried[1])}")
    except ChildProcessError:
        pass


def _start_script(folder: Folder, metadata_host: str) -> int:
    path = f"{folder.path}/startup-script"
    if os.path.getsize(path) == 0:
        return -1
    variables = environment(folder, metadata_host)
    if (pid := os.fork()) != 0:
        return pid
    try:
        os.setsid()
        os.chdir(variables["HOME"])
        _forget_signals()
        _execute(path, variables)
    except OSError as error:
        folder.print_serial(f"startup-script cannot be run: {error}")
    os._exit(127)


def _forget_signals() -> None:
    # Python ignores SIGPIPE, and a shell ignores SIGINT for what it starts in the background; programs expect neither.
    for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def _execute(path: str, variables: dict[str, str]) -> NoReturn:
    try:
        os.execve(path, [path], variables)
    except OSError:
        # No `#!` line, or a disk that refuses to execute: then it is a script of the shell, as on GCE.
        os.execve(shell(), [shell(), path], variables)


def shell() -> str:
    return next((shell for shell in _SHELLS if os.path.exists(shell)), "/bin/sh")


def _write_switches(folder: Folder) -> None:
    """Commands that switch off the machine, where the real ones would switch off the user's computer."""
    for name in _SWITCHES:
        _write_program(f"{folder.path}/bin/{name}", f"#!/bin/sh\nkill -s USR1 {os.getpid()}\n")
    refusal = "#!/bin/sh\necho 'reboot: a local machine cannot reboot itself; power it off and start it' >&2\nexit 1\n"
    _write_program(f"{folder.path}/bin/reboot", refusal)


def _write_program(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, 0o755)
