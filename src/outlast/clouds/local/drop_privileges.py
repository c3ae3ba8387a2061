"""Runs a program as another account, with a private folder mounted where that account can reach it.

    python -m outlast.clouds.local.drop_privileges ACCOUNT FOLDER PROGRAM ARGS...

Database servers refuse to run as root, and other accounts cannot enter root's folders. Therefore the folder is mounted
in a mount namespace of this program only. Inherited descriptors, such as a lock, stay open.
"""

from __future__ import annotations

import os
import pwd
import sys

from outlast.clouds.local import linux

# Exists on every Linux, and is usually empty.
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
