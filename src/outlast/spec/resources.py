"""The readers of `[volumes]` and `databases`, which a run shares with others. No IO."""

from __future__ import annotations

import posixpath
import re
from typing import Any

from outlast.spec import fields
from outlast.spec.checkpoint_patterns import may_hold
from outlast.spec.reader import Reader, text, texts
from outlast.spec.spec import CheckpointSpec, Spec

_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
# Placeholder for the run's name in the folder of a volume.
RUN_PLACE = "{run}"
# A volume mounted here would hide the machine's software or home folder.
_RESERVED = (
    *("/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/opt", "/proc", "/root", "/run", "/sbin"),
    *("/sys", "/tmp", "/usr", "/var"),
)


def volumes(reader: Reader) -> dict[str, str]:
    """Read path → volume. An absolute path is on the machine, any other in the code folder."""
    found: dict[str, str] = {}
    for field in reader.table:
        place = reader.take(field, _place, "")
        try:
            found[_path(field)] = place
        except ValueError as problem:
            reader.wrong(field, str(problem))
    for path in found:
        parents = [other for other in found if other != path and path.startswith(f"{other}/")]
        if parents:
            reader.wrong(path, f"cannot be inside `{parents[0]}`, where another volume is mounted")
    return found


def databases(reader: Reader) -> dict[str, str]:
    """Read `databases = "genomes"`, or, for several, `[databases]` with `DATABASE_URL = "genomes"`."""
    given = reader.table.get("databases")
    if isinstance(given, str | list):
        names: tuple[str, ...] = reader.take("databases", texts, ())
        if len(names) > 1:
            reader.wrong(
                "databases", f"expected one name, got {len(names)}; assign each to a variable in `[databases]`"
            )
        inner = Reader({"DATABASE_URL": names[0]} if names else {}, section="databases", problems=reader.problems)
    else:
        inner = reader.section_of("databases")
    found: dict[str, str] = {}
    for field in inner.table:
        found[field] = inner.take(field, fields.name, "")
        if not _VARIABLE.match(field):
            inner.wrong(field, "invalid name of an environment variable: expected letters, digits and `_`")
        elif field.startswith("OUTLAST_"):
            inner.wrong(field, "names that start with OUTLAST_ are reserved; choose another")
    return found


def check(reader: Reader, spec: Spec) -> None:
    """Report conflicts between fields."""
    for variable in spec.databases:
        if variable in spec.secrets or variable in spec.env:
            reader.wrong("databases", f"`{variable}` is also set in [env] or [secrets]; choose another variable")
    for path in spec.volumes:
        if path in (*spec.data, spec.output_path) or _is_restored(path, spec.checkpoint):
            reader.wrong("volumes", f"`{path}` is also used by [data], [checkpoint] or [outputs]; choose another path")
    if spec.volumes and spec.machine.container:
        reader.wrong("volumes", "cannot be combined with `[machine] container` yet")


def _is_restored(path: str, checkpoint: CheckpointSpec) -> bool:
    """Return whether restoring a checkpoint would replace the path, for all users of the volume."""
    if checkpoint.names:
        above = "" if checkpoint.path == "." else f"{checkpoint.path}/"
        return may_hold(path, [above + name for name in checkpoint.names])
    inside = f"{path}/".startswith(f"{checkpoint.path}/") or (checkpoint.path == "." and not path.startswith("/"))
    return bool(checkpoint.path) and inside


def split(place: str) -> tuple[str, str]:
    """Return the volume and the folder in it."""
    name, _, folder = place.partition("/")
    return name, folder


def _place(value: Any) -> str:
    name, folder = split(text(value).strip().rstrip("/"))
    fields.name(name)
    parts = [part for part in folder.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError(f"expected a folder without `..`, got {value!r}")
    for part in parts:
        if ("{" in part or "}" in part) and part.count("{") + part.count("}") != 2 * part.count(RUN_PLACE):
            raise ValueError(f"unknown placeholder in {value!r}: only `{RUN_PLACE}` is replaced")
    return "/".join([name, *parts])


def _path(value: str) -> str:
    path = value.strip()
    if not path:
        raise ValueError("expected a path, got an empty text")
    if path.startswith("~") or ".." in path.split("/"):
        raise ValueError(f"expected a full path, or one inside the code folder, without `..` and `~`, got {value!r}")
    plain = posixpath.normpath(path)
    plain = "/" + plain.lstrip("/") if plain.startswith("/") else plain
    if plain in _RESERVED or plain == ".":
        raise ValueError(f"`{plain}` is a folder of the system; choose another one, such as `/data`")
    return plain
