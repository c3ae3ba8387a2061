"""`[volumes]` and `databases`: what a run shares with others, read and checked. No IO."""

from __future__ import annotations

import posixpath
import re
from typing import Any

from outlast.spec import fields
from outlast.spec.checkpoint_patterns import may_hold
from outlast.spec.reader import Reader, text, texts
from outlast.spec.spec import CheckpointSpec, Spec

_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
# The folder of a run in a volume: its date and its name.
RUN_PLACE = "{run}"
# The machine's own; a volume there would take its software away, or its home.
_RESERVED = (
    *("/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/opt", "/proc", "/root", "/run", "/sbin"),
    *("/sys", "/tmp", "/usr", "/var"),
)


def volumes(reader: Reader) -> dict[str, str]:
    """Path → volume. A path with a `/` at its beginning is the machine's, any other one is in the code folder."""
    found: dict[str, str] = {}
    for field in reader.table:
        place = reader.take(field, _place, "")
        try:
            found[_path(field)] = place
        except ValueError as problem:
            reader.wrong(field, str(problem))
    for path in found:
        around = [other for other in found if other != path and path.startswith(f"{other}/")]
        if around:
            reader.wrong(path, f"lies inside of `{around[0]}`, which is another volume's")
    return found


def databases(reader: Reader) -> dict[str, str]:
    """`databases = "genomes"`, or `[databases]` with `DATABASE_URL = "genomes"`, for more than one."""
    given = reader.table.get("databases")
    if isinstance(given, str | list):
        names: tuple[str, ...] = reader.take("databases", texts, ())
        if len(names) > 1:
            reader.wrong("databases", "more than one: say which variable each goes to, in a table `[databases]`")
        inner = Reader({"DATABASE_URL": names[0]} if names else {}, section="databases", problems=reader.problems)
    else:
        inner = reader.section_of("databases")
    found: dict[str, str] = {}
    for field in inner.table:
        found[field] = inner.take(field, fields.name, "")
        if not _VARIABLE.match(field):
            inner.wrong(field, "is no name of an environment variable")
        elif field.startswith("OUTLAST_"):
            inner.wrong(field, "names that begin with OUTLAST_ are set by outlast")
    return found


def check(reader: Reader, spec: Spec) -> None:
    """What cannot be said of one field alone."""
    for variable in spec.databases:
        if variable in spec.secrets or variable in spec.env:
            reader.wrong("databases", f"`{variable}` is set in [env] or [secrets] as well")
    for path in spec.volumes:
        if path in (*spec.data, spec.output_path) or _is_restored(path, spec.checkpoint):
            reader.wrong("volumes", f"`{path}` is where [data], [checkpoint] or [outputs] are")
    if spec.volumes and spec.machine.container:
        reader.wrong("volumes", "a command in a container sees no volumes yet; leave out `[machine] container`")


def _is_restored(path: str, checkpoint: CheckpointSpec) -> bool:
    """Would it be replaced, for everybody who has the volume, when a checkpoint is put back?"""
    if checkpoint.names:
        above = "" if checkpoint.path == "." else f"{checkpoint.path}/"
        return may_hold(path, [above + name for name in checkpoint.names])
    inside = f"{path}/".startswith(f"{checkpoint.path}/") or (checkpoint.path == "." and not path.startswith("/"))
    return bool(checkpoint.path) and inside


def split(place: str) -> tuple[str, str]:
    """Volume and folder in it."""
    name, _, folder = place.partition("/")
    return name, folder


def _place(value: Any) -> str:
    name, folder = split(text(value).strip().rstrip("/"))
    fields.name(name)
    parts = [part for part in folder.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError(f"{value!r} must not hold `..`")
    for part in parts:
        if ("{" in part or "}" in part) and part.count("{") + part.count("}") != 2 * part.count(RUN_PLACE):
            raise ValueError(f"{value!r}: the one thing that is filled in is `{RUN_PLACE}`")
    return "/".join([name, *parts])


def _path(value: str) -> str:
    path = value.strip()
    if not path:
        raise ValueError("a path must not be empty")
    if path.startswith("~") or ".." in path.split("/"):
        raise ValueError(f"{value!r} must be a full path, or one inside the code folder, without `..` and `~`")
    plain = posixpath.normpath(path)
    plain = "/" + plain.lstrip("/") if plain.startswith("/") else plain
    if plain in _RESERVED or plain == ".":
        raise ValueError(f"`{plain}` is the machine's own; take a folder of your own, such as `/data`")
    return plain
