"""The door of a machine that has a root of its own: accounts for whom its keys name, and sshd on port 22.

Called by init, within the machine.
"""

from __future__ import annotations

import os
import pwd
import re
from contextlib import suppress

from outlast.clouds.local.init import reset_signals, report
from outlast.clouds.local.isolation import Inside
from outlast.clouds.local.ssh import find_sshd, server_config

_ACCOUNT = re.compile(r"[a-z_][-a-z0-9_.]{0,31}")


def create_accounts(inside: Inside) -> None:
    """An account for everybody who may come in. May be repeated."""
    with suppress(FileNotFoundError):
        for user in os.listdir(f"{inside.ssh}/keys"):
            _create_account(user, inside.variables)


def start(inside: Inside) -> int:
    """The pid of sshd; 0 when nobody may come in, or there is no sshd."""
    if not os.path.exists(f"{inside.ssh}/host_key"):
        return 0
    if not (sshd := find_sshd()):
        report("nobody can log in: there is no sshd here")
        return 0
    settings = " ".join(f"{name}={value}" for name, value in inside.variables.items() if name in _KEPT and value)
    # In memory, not on the disk: an image of this machine shall have keys of its own.
    with open("/run/outlast-sshd_config", "w", encoding="utf-8") as file:
        file.write(f"Port 22\nListenAddress 0.0.0.0\nSetEnv {settings}\n{server_config(inside.ssh)}")
    if (pid := os.fork()) != 0:
        return pid
    try:
        os.setsid()
        reset_signals()
        os.execve(sshd, [sshd, "-D", "-e", "-f", "/run/outlast-sshd_config"], inside.variables)
    except OSError as error:
        report(f"sshd cannot be run: {error}")
    os._exit(127)


_KEPT = ("PATH", "LANG", "OUTLAST_MACHINE")


def _create_account(user: str, variables: dict[str, str]) -> None:
    """An account that may do everything, as Google's machines make it for whom the metadata names."""
    if not _ACCOUNT.fullmatch(user):
        return
    try:
        pwd.getpwnam(user)
        return
    except KeyError:
        pass
    # `*`: nobody logs in with a password; without it the account is locked, for keys as well.
    _run(["useradd", "--create-home", "--shell", "/bin/bash", "--password", "*", user], variables)
    if os.path.isdir("/etc/sudoers.d"):
        with open(f"/etc/sudoers.d/outlast-{user}", "w", encoding="utf-8") as file:
            file.write(f"{user} ALL=(ALL:ALL) NOPASSWD:ALL\n")


def _run(argv: list[str], variables: dict[str, str]) -> None:
    try:
        pid = os.posix_spawnp(argv[0], argv, variables)
        os.waitpid(pid, 0)
    except OSError as error:
        report(f"{argv[0]}: {error}")
