"""A proxy to an instance's ssh server, in place of Amazon's tunnel. Arguments: the folder of the machines, the id."""

from __future__ import annotations

import os
import select
import shlex
import socket
import sys

from outlast.clouds.local.cloud import LocalCloud


def carry(connection: socket.socket) -> None:
    """Copy standard input to the ssh server, and its answers to standard output."""
    targets = {sys.stdin.fileno(): connection.fileno(), connection.fileno(): sys.stdout.fileno()}
    while True:
        for ready in select.select(list(targets), [], [])[0]:
            piece = os.read(ready, 65536)
            if not piece:
                return
            while piece:
                piece = piece[os.write(targets[ready], piece) :]


if __name__ == "__main__":
    mode = os.environ.get("OUTLAST_TEST_MODE", "pidns")
    access = LocalCloud(sys.argv[1], mode=mode).access(sys.argv[2])
    if access.proxy_command:
        argv = shlex.split(access.proxy_command)
        os.execvp(argv[0], argv)
    # A machine with its own address.
    carry(socket.create_connection((access.host, access.port)))
