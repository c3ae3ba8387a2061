"""The packages on a machine: listed over ssh, stored at creation, compared on request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from outlast.errors import Missing
from outlast.machines.lifecycle import packages_key
from outlast.machines.ssh import Link
from outlast.records.machines import MachineRecords
from outlast.store.codec import decoded

# Reads the package database and the metadata of the default Python; both take a fraction of a second.
_LIST = """\
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


def installed(link: Link) -> Packages:
    """Return package manager → name → version."""
    answer = link.run(["sh", "-c", _LIST], timeout_s=120.0)
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


def store(machine_records: MachineRecords, name: str, packages: Packages) -> None:
    machine_records.bucket.put(packages_key(name), msgspec.json.encode(packages))


def stored(machine_records: MachineRecords, name: str) -> Packages | None:
    """Return the packages at creation; None if they could not be listed."""
    try:
        return decoded(machine_records.bucket.get(packages_key(name)), Packages, packages_key(name))
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
