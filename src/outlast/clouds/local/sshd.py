"""sshd inside a machine of mode `root`: the accounts of its authorized keys, and the server on port 22.

Runs inside the machine, in its init.
"""

from __future__ import annotations

import os
import pwd
import re
from contextlib import suppress

from outlast.clouds.local import sudo
from outlast.clouds.local.init import report, reset_signals
from outlast.clouds.local.isolation import Inside
from outlast.clouds.local.ssh import find_sshd, server_config

_ACCOUNT = re.compile(r"[a-z_][-a-z0-9_.]{0,31}")


def create_accounts(inside: Inside) -> None:
    """Create an account for every user with authorized keys. May be repeated."""
    with suppress(FileNotFoundError):
        for user in os.listdir(f"{inside.ssh}/keys"):
            _create_account(user, inside.variables)


def start(inside: Inside) -> int:
    """Start sshd and return its pid; 0 if there are no keys, or no sshd."""
    if not os.path.exists(f"{inside.ssh}/host_key"):
        return 0
    if not (sshd := find_sshd()):
        report("ssh is unavailable: sshd is not installed")
        return 0
    settings = " ".join(f"{name}={value}" for name, value in inside.variables.items() if name in _KEPT and value)
    # In memory, not on the disk: a machine from an image of this one must use its own keys.
    with open("/run/outlast-sshd_config", "w", encoding="utf-8") as file:
        file.write(f"Port 22\nListenAddress 0.0.0.0\nSetEnv {settings}\n{server_config(inside.ssh)}")
    if (pid := os.fork()) != 0:
        return pid
    try:
        os.setsid()
        reset_signals()
        os.execve(sshd, [sshd, "-D", "-e", "-f", "/run/outlast-sshd_config"], inside.variables)
    except OSError as error:
        report(f"could not run sshd: {error}")
    os._exit(127)


_KEPT = ("PATH", "LANG", "OUTLAST_MACHINE")


def _create_account(user: str, variables: dict[str, str]) -> None:
    """Create an account with sudo rights, as Google's machines do for users in the metadata.

    A user whom the image has already gets the rights, too.
    """
    if not _ACCOUNT.fullmatch(user) or user == "root":
        return
    try:
        pwd.getpwnam(user)
    except KeyError:
        # `*` disables password login. Without it the account is locked, for keys too.
        _run(["useradd", "--create-home", "--shell", "/bin/bash", "--password", "*", user], variables)
    sudo.grant(user, variables)


def _run(argv: list[str], variables: dict[str, str]) -> None:
    try:
        pid = os.posix_spawnp(argv[0], argv, variables)
        os.waitpid(pid, 0)
    except OSError as error:
        report(f"{argv[0]}: {error}")
