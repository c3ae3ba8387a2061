"""The folder on the machine that a sync reads or writes, and the handshake with the receiver there."""

from __future__ import annotations

import getpass
import hashlib
import os

import msgspec

from outlast.errors import OutlastError
from outlast.sync.channel import Channel, LinkLost


class RemoteDir(msgspec.Struct, frozen=True, kw_only=True):
    """A folder on the machine, and the permitted operations on it."""

    folder: str
    # Identifies the source. Each source has a separate list of the files that it created in the folder.
    origin: str
    # A relative `folder` starts here; itself relative to the home of the ssh user.
    base: str = ""
    delete: bool = False
    # Copy from the machine to this computer.
    pull: bool = False


class Greeting(msgspec.Struct, frozen=True, kw_only=True):
    """The receiver's description of its side."""

    root: str
    home: str
    created: bool
    scratch: str
    owned: tuple[str, ...]
    rsync: bool


def origin_of(*parts: str) -> str:
    """Return an id of this user, computer and `parts`, which is stable over syncs."""
    whole = "\0".join([getpass.getuser(), os.uname().nodename, *parts])
    return hashlib.sha256(os.fsencode(whole)).hexdigest()[:16]


def greet(channel: Channel, remote: RemoteDir, *, name: str) -> Greeting:
    """Open the folder. Raises UsageError if the receiver refuses it, OutlastError if the machine lacks a program."""
    try:
        answer = channel.request(
            "hello",
            path=remote.folder or ".",
            base=remote.base,
            origin=remote.origin,
            delete=remote.delete,
            pull=remote.pull,
        )
    except LinkLost as problem:
        if channel.lacks_python:
            raise OutlastError(
                f"`python3` is not installed on {name}", hint=f"install it there: `outlast machine ssh {name}`"
            ) from problem
        raise
    tools = answer["tools"]
    if not tools["rsync"]:
        raise OutlastError(
            f"`rsync` is not installed on {name}", hint=f"`outlast machine ssh {name} -- sudo apt-get install -y rsync`"
        )
    return Greeting(
        root=answer["root"],
        home=answer["home"],
        created=answer["created"],
        scratch=answer["scratch"],
        owned=tuple(answer["owned"]),
        rsync=tools["rsync"],
    )
