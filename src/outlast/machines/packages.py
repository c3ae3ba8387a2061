"""What is installed on a machine: asked over ssh, remembered when it was made, compared on request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from outlast.errors import Missing
from outlast.machines.care import packages_key
from outlast.machines.ssh import Link
from outlast.workspace.codec import decoded
from outlast.workspace.hand import Hands

# By the package database and by the metadata of the Python that a login finds; both in a fraction of a second.
_ASK = """\
echo '[dpkg]'
command -v dpkg-query >/dev/null && dpkg-query -W -f '${Package} ${Version}\\n'
echo '[pip]'
command -v python3 >/dev/null && python3 -c '
import importlib.metadata as metadata
for found in metadata.distributions():
    print(found.metadata["Name"], found.version)
'
true
"""

Packages = dict[str, dict[str, str]]


def ask(link: Link) -> Packages:
    """Name → version, by whoever installed it."""
    answer = link.run(["sh", "-c", _ASK], timeout_s=120.0)
    found: Packages = {}
    part = ""
    for line in answer.stdout.decode("utf-8", "replace").splitlines():
        if line.startswith("["):
            part = line.strip("[]")
            found[part] = {}
        elif " " in line:
            name, version = line.split(" ", 1)
            found[part][name.lower() if part == "pip" else name] = version
    return found


def remember(hands: Hands, name: str, packages: Packages) -> None:
    hands.bucket.put(packages_key(name), msgspec.json.encode(packages))


def remembered(hands: Hands, name: str) -> Packages | None:
    """What was there when the machine was made; None if nobody could ask."""
    try:
        return decoded(hands.bucket.get(packages_key(name)), Packages, packages_key(name))
    except Missing:
        return None


def changes(before: Mapping[str, Mapping[str, str]], after: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    for part in sorted({*before, *after}):
        old, new = before.get(part, {}), after.get(part, {})
        for name in sorted({*old, *new}):
            if name not in old:
                yield f"{part} {name} {new[name]}: installed"
            elif name not in new:
                yield f"{part} {name} {old[name]}: removed"
            elif old[name] != new[name]:
                yield f"{part} {name}: {old[name]} → {new[name]}"
