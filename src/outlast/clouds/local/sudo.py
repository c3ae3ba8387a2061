"""`sudo` on machines whose software lacks it, and the right to use it for users who log in, as on Google's machines."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

GROUP = "google-sudoers"
_REAL = "/usr/bin/sudo"
# In the order of Google's guest agent. A system has some of them.
_MORE_GROUPS = ("adm", "dip", "docker", "lxd", "plugdev", "video")

_PARSE = r"""#!/bin/sh
# Stands in for sudo on this machine.
user=root; login=; shell=
while [ $# -gt 0 ]; do
    case $1 in
        --) shift; break ;;
        --user=*) user=${1#*=} ;;
        --user) shift; user=$1 ;;
        --group | --prompt | --chdir | --chroot | --host | --close-from | --other-user) shift ;;
        --login) login=yes ;;
        --shell) shell=yes ;;
        --*) ;;
        -?*)
            rest=${1#-}
            while [ -n "$rest" ]; do
                letter=${rest%"${rest#?}"}; rest=${rest#?}
                case $letter in
                    u) [ -n "$rest" ] || { shift; rest=$1; }; user=$rest; rest= ;;
                    [gpChDRTUrt]) [ -n "$rest" ] || shift; rest= ;;
                    i) login=yes ;;
                    s) shell=yes ;;
                    [vkK]) [ $# -gt 1 ] || exit 0 ;;
                esac
            done ;;
        *=*) export "$1" ;;
        *) break ;;
    esac
    shift
done
user=${user#'#'}
[ $# -gt 0 ] || [ -n "$login$shell" ] || { echo "usage: sudo [-u USER] COMMAND ..." >&2; exit 1; }
"""

# A machine of one user: the real root is the host's, so every command runs as this user.
_ONE_USER = (
    _PARSE
    + r"""
case $user in
    root | 0 | "$(id -un)" | "$(id -u)") ;;
    *) echo "sudo: cannot run as $user: in this mode of the local cloud a machine has one user" >&2; exit 1 ;;
esac
[ -z "$login" ] || cd
if [ -n "$login$shell" ]; then
    [ $# -eq 0 ] || set -- -c "$*"
    set -- "${SHELL:-/bin/sh}" "$@"
fi
exec "$@"
"""
)

_OWN_USERS = (
    _PARSE.replace("#!/bin/sh\n", f'#!/bin/sh\n[ ! -x {_REAL} ] || exec {_REAL} "$@"\n', 1)
    + r"""
entry=$(getent passwd "$user") || { echo "sudo: unknown user $user" >&2; exit 1; }
user=${entry%%:*}
export SUDO_USER="$(id -un)" SUDO_UID="$(id -u)" SUDO_GID="$(id -g)"
HOME=$(echo "$entry" | cut -d: -f6); export HOME USER="$user" LOGNAME="$user"
if [ -n "$login" ]; then
    [ $# -eq 0 ] || set -- -c "$*"
    if [ "$SUDO_UID" = 0 ]; then exec runuser -l "$user" "$@"; else exec su -l "$@" -- "$user"; fi
fi
if [ -n "$shell" ]; then
    [ $# -eq 0 ] || set -- -c "$*"
    set -- "${SHELL:-/bin/sh}" "$@"
fi
[ "$user" != "$SUDO_USER" ] || exec "$@"
[ "$SUDO_UID" != 0 ] || exec runuser -u "$user" -- "$@"
# By way of root: `su` runs no command as a user who may not log in.
exec su -s /bin/sh -c 'exec runuser -u "$0" -- "$@"' -- root "$user" "$@"
"""
)
# `su` without a password for the members of the group, which stands in for sudo's right.
_PAM_LINE = f"auth sufficient pam_wheel.so trust use_uid group={GROUP}\n"


def program(*, own_users: bool) -> str:
    """Return a program in place of sudo."""
    return _OWN_USERS if own_users else _ONE_USER


def grant(user: str, variables: Mapping[str, str]) -> None:
    """Let a user of the machine run everything as root, without a password. May be repeated."""
    _run(["groupadd", "--force", GROUP], variables)
    for group in (GROUP, *_MORE_GROUPS):
        if group == GROUP or _has_group(group):
            _run(["usermod", "--append", "--groups", group, user], variables)
    if os.path.isdir("/etc/sudoers.d"):
        _write("/etc/sudoers.d/google_sudoers", f"%{GROUP} ALL=(ALL:ALL) NOPASSWD:ALL\n", 0o440)
    if not os.path.exists(_REAL):
        _trust_group()


def _has_group(name: str) -> bool:
    with suppress(OSError), open("/etc/group", encoding="utf-8", errors="replace") as file:
        return any(line.startswith(f"{name}:") for line in file)
    return False


def _trust_group() -> None:
    try:
        with open("/etc/pam.d/su", encoding="utf-8", errors="replace") as file:
            before = file.read()
    except FileNotFoundError:
        return
    if _PAM_LINE not in before:
        _write("/etc/pam.d/su", _PAM_LINE + before, 0o644)


def _write(path: str, text: str, permissions: int) -> None:
    draft = f"{path}.outlast"
    with open(draft, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(draft, permissions)
    os.replace(draft, path)


def _run(argv: list[str], variables: Mapping[str, str]) -> None:
    """Run a program. A system without it, such as one without accounts, has no users to grant anything."""
    with suppress(OSError):
        os.waitpid(os.posix_spawnp(argv[0], argv, dict(variables)), 0)
