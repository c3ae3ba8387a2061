"""Runs a server's program as its own account, with its folder in sight although the way there is private.

    python -m outlast.clouds.local.drop_privileges ACCOUNT FOLDER PROGRAM WORDS...

Servers of databases refuse to be root, and root's files are closed to everybody else. So the folder is shown at one
place of a mount namespace that this program alone is in. What was inherited, a lock among it, stays open.
"""

from __future__ import annotations

import os
import pwd
import sys

from outlast.clouds.local import linux

# Everywhere there, and empty nearly everywhere; covered for this one program only.
MOUNT_POINT = "/mnt"


def main(account: str, folder: str, argv: list[str]) -> None:
    entry = pwd.getpwnam(account)
    linux.unshare(linux.CLONE_NEWNS, "mount namespace")
    linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)
    linux.mount(folder, MOUNT_POINT, None, linux.MS_BIND)
    os.initgroups(account, entry.pw_gid)
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    os.chdir(MOUNT_POINT)
    os.execv(argv[0], argv)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
