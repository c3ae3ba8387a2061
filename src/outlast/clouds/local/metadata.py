"""The metadata of a machine in GCE's form: a tree of values, found by path, rendered as text or JSON.

A dict or list is a directory, everything else a value. In JSON, names become camelCase, except those of attributes,
which users choose.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

# Placeholders with the form of Google's; they grant no access.
_PROJECT = "outlast-local"
_PROJECT_NUMBER = 424242424242
EMAIL = f"local@{_PROJECT}.iam.gserviceaccount.com"
_SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]


class NoValue(KeyError):
    """The path does not exist."""


class List(list[Any]):
    """A value of several lines, such as scopes; unlike a plain list, not a directory."""


def tree(
    facts: dict[str, Any], attributes: dict[str, str], *, guest: dict[str, Any], address: str, preempted: bool
) -> dict[str, Any]:
    """Return everything below `computeMetadata/v1/`."""
    zone, spot = str(facts["zone"]), bool(facts["spot"])
    account = {"aliases": List(["default"]), "email": EMAIL, "scopes": List(_SCOPES)}
    project_path = f"projects/{_PROJECT_NUMBER}"
    instance = {
        "attributes": dict(attributes),
        "cpu-platform": "Unknown CPU Platform",
        "description": "",
        "disks": [{"device-name": "boot", "index": 0, "interface": "SCSI", "mode": "READ_WRITE", "type": "PERSISTENT"}],
        "guest-attributes": guest,
        "hostname": f"{facts['name']}.{zone}.c.{_PROJECT}.internal",
        "id": int(facts["id"]),
        "image": f"projects/{_PROJECT}/global/images/{facts['image']}",
        "machine-type": f"{project_path}/machineTypes/{facts['type']}",
        "maintenance-event": "NONE",
        "name": facts["name"],
        "network-interfaces": [
            {
                "access-configs": [{"external-ip": address, "type": "ONE_TO_ONE_NAT"}],
                "gateway": "127.0.0.1",
                "ip": address,
                "mac": "02:00:00:00:00:01",
                "network": f"{project_path}/networks/default",
                "subnetmask": "255.0.0.0",
            }
        ],
        "preempted": "TRUE" if preempted else "FALSE",
        "scheduling": {
            "automatic-restart": "FALSE" if spot else "TRUE",
            "on-host-maintenance": "TERMINATE" if spot else "MIGRATE",
            "preemptible": "TRUE" if spot else "FALSE",
        },
        "service-accounts": {EMAIL: account, "default": account},
        "tags": List(),
        "zone": f"{project_path}/zones/{zone}",
    }
    project = {"attributes": {}, "numeric-project-id": _PROJECT_NUMBER, "project-id": _PROJECT}
    return {"instance": instance, "project": project}


# Directories below which users choose the names.
NAMED_BY_USERS = ("attributes", "guest-attributes")
# Directories that an overlay replaces as a whole.
_GIVEN_WHOLE = ("attributes", "service-accounts")


def overlay(values: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return the tree with other values merged over it, which an emulator in front of this cloud sets."""
    merged = dict(values)
    for name, value in over.items():
        below: Any = merged.get(name)
        if isinstance(value, dict) and isinstance(below, dict) and name not in _GIVEN_WHOLE:
            merged[name] = overlay(below, value)
        elif _is_of_objects(value) and _is_of_objects(below):
            # Merge item by item: of a network interface the emulator sets some fields, and the machine its address.
            known = [*below, *({} for _ in value)]
            merged[name] = [overlay(known[at], one) for at, one in enumerate(value)]
        else:
            merged[name] = _typed(value)
    return merged


def _is_of_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(inner, dict) for inner in value)


def _typed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _typed(inner) for name, inner in value.items()}
    if isinstance(value, list):
        # A list of texts is one value; a list of objects is a directory.
        return [_typed(inner) for inner in value] if any(isinstance(inner, dict) for inner in value) else List(value)
    return value


def find(values: Any, path: str) -> Any:
    """Return the value at a path such as `instance/disks/0/mode`. Raises NoValue."""
    found = values
    for part in filter(None, path.split("/")):
        if isinstance(found, dict) and part in found:
            found = found[part]
        elif is_directory(found) and part.isascii() and part.isdigit() and int(part[:9]) < len(found):
            found = found[int(part)] if isinstance(found, list) else _missing(path)
        else:
            _missing(path)
    return found


def _missing(path: str) -> Any:
    raise NoValue(path)


def is_directory(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and not isinstance(value, List))


def as_listing(value: Any) -> str:
    """Return the names in a directory, one per line; subdirectories end with a slash."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return "".join(f"{name}{'/' if is_directory(inner) else ''}\n" for name, inner in items)


def as_text(value: Any) -> str:
    return "".join(f"{line}\n" for line in value) if isinstance(value, List) else str(value)


def as_text_tree(value: Any, prefix: str = "") -> str:
    """Return every value below, one per line, after its path."""
    if not is_directory(value):
        return "".join(f"{prefix} {line}\n" for line in as_text(value).splitlines() or [""])
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return "".join(as_text_tree(inner, f"{prefix}/{name}" if prefix else str(name)) for name, inner in items)


def as_json(value: Any, *, named_by_users: bool = False) -> str:
    return json.dumps(value if named_by_users else _camel(value), separators=(",", ":"))


def _camel(value: Any) -> Any:
    if isinstance(value, dict):
        return {_camel_name(name): inner if name in NAMED_BY_USERS else _camel(inner) for name, inner in value.items()}
    return [_camel(inner) for inner in value] if isinstance(value, list) else value


def _camel_name(name: str) -> str:
    if "@" in name:
        return name
    first, *rest = name.split("-")
    return first + "".join(part.capitalize() for part in rest)


def etag(body: str) -> str:
    return hashlib.blake2b(body.encode("utf-8", "replace"), digest_size=8).hexdigest()
