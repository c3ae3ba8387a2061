"""The folder on the machine that a sync is about, and the first words with the receiver there."""

from __future__ import annotations

import getpass
import hashlib
import os

import msgspec

from outlast.errors import OutlastError
from outlast.sync.channel import Channel, LinkLost


class RemoteDir(msgspec.Struct, frozen=True, kw_only=True):
    """Where on the machine, and what may be done there."""

    folder: str
    # Whose files these are: another computer or folder that syncs to the same place keeps its own account.
    origin: str
    # What a relative folder is relative to; itself relative to the home of whom we log in as.
    base: str = ""
    delete: bool = False
    # We read there and write here.
    reading: bool = False


class Greeting(msgspec.Struct, frozen=True, kw_only=True):
    """What the receiver told of its side."""

    root: str
    home: str
    made: bool
    scratch: str
    owned: tuple[str, ...]
    rsync: bool


def origin_of(*parts: str) -> str:
    """The same for the same user, computer and folder."""
    whole = "\0".join([getpass.getuser(), os.uname().nodename, *parts])
    return hashlib.sha256(os.fsencode(whole)).hexdigest()[:16]


def greet(pipe: Channel, place: RemoteDir, *, name: str) -> Greeting:
    """Raises UsageError for a folder that is refused, OutlastError for a machine that lacks something."""
    try:
        answer = pipe.ask(
            "hello",
            path=place.folder or ".",
            base=place.base,
            origin=place.origin,
            delete=place.delete,
            reading=place.reading,
        )
    except LinkLost as problem:
        if pipe.lacks_python:
            raise OutlastError(
                f"there is no `python3` on {name}", hint=f"install it there: `outlast machine ssh {name}`"
            ) from problem
        raise
    tools = answer["tools"]
    if not tools["rsync"]:
        raise OutlastError(
            f"there is no `rsync` on {name}", hint=f"`outlast machine ssh {name} -- sudo apt-get install -y rsync`"
        )
    return Greeting(
        root=answer["root"],
        home=answer["home"],
        made=answer["made"],
        scratch=answer["scratch"],
        owned=tuple(answer["owned"]),
        rsync=tools["rsync"],
    )
