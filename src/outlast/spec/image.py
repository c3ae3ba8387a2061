"""The reader of `[image]`, the recipe of an image. No IO: the builder checks that the files exist."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Any

from outlast.clouds.traits import DEFAULT_CLOUD
from outlast.errors import SpecError
from outlast.spec import fields, quantity
from outlast.spec.reader import Reader, of, text, texts
from outlast.spec.spec import ImageSpec, MachineSpec

# A package of apt: a name, optionally with architecture, version or release. Never an option.
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9.+-]*(?::[a-z0-9-]+)?(?:[=/][A-Za-z0-9.+:~-]+)?")
_SCRIPT_FILE = re.compile(r"\S+\.sh")
_STEPS = ("packages", "pip", "requirements", "lock", "script", "files", "warm")


def parse_image(table: Mapping[str, Any], *, source: str) -> ImageSpec:
    """Read a recipe file: its table `[image]`, or its top-level fields. Raises SpecError."""
    problems: list[str] = []
    top = Reader(table, problems=problems)
    if "image" in table:
        reader = top.section_of("image")
        top.finish()
    else:
        reader = top
    image = read_image(reader, "", DEFAULT_CLOUD)
    if problems:
        raise SpecError(problems, source=source, hint="see `[image]` in docs/spec.md")
    return image


def read_image(reader: Reader, name: str, cloud: str) -> ImageSpec:
    """Read the recipe; `name` and `cloud` are the defaults from the rest of the file."""
    if not name and "name" not in reader.table:
        reader.wrong("name", "missing: set the name of the image family")
    image = ImageSpec(
        name=reader.take("name", fields.name, name or "image"),
        base=reader.take("base", text, ""),
        packages=reader.take("packages", _packages, ()),
        pip=reader.take("pip", _requirements, ()),
        requirements=reader.take("requirements", texts, ()),
        lock=reader.take("lock", text, ""),
        script=reader.take("script", text, ""),
        files=_files(reader),
        warm=reader.take("warm", texts, ()),
        test=reader.take("test", texts, ()),
        keep=reader.take("keep", texts, ()),
        machine=_builder(reader, cloud),
        timeout_s=reader.take("timeout", quantity.duration_s, 3600.0),
    )
    reader.finish()
    if not any(reader.table.get(step) for step in _STEPS):
        reader.problems.append(f"[image]: the recipe is empty: give at least one of {', '.join(_STEPS)}")
    return image


def _builder(reader: Reader, cloud: str) -> MachineSpec:
    gpu, gpus = reader.take("gpu", quantity.gpu_count, ("", 0))
    defaults = MachineSpec()
    return MachineSpec(
        cloud=reader.take("cloud", fields.cloud, cloud),
        cpus=reader.take("cpus", quantity.number_range, defaults.cpus),
        memory_gb=reader.take("memory", quantity.size_range_gb, defaults.memory_gb),
        gpu=gpu,
        gpus=gpus,
        disk_gb=reader.take("disk", quantity.size_gb, defaults.disk_gb),
        type=reader.take("type", text, ""),
        spot=reader.take("spot", of(bool), False),
        zones=reader.take("zones", texts, ()),
    )


def _packages(value: Any) -> tuple[str, ...]:
    names = texts(value)
    for name in names:
        if not _PACKAGE.fullmatch(name):
            raise ValueError(f"invalid apt package {name!r}: expected e.g. `git` or `cmake=3.25.1-1`")
    return names


def _requirements(value: Any) -> tuple[str, ...]:
    lines = texts(value)
    for line in lines:
        if line.lstrip().startswith("-"):
            raise ValueError(
                f"expected a package, got {line!r}; put options of pip into a file named in `requirements`"
            )
    return lines


def _files(reader: Reader) -> dict[str, str]:
    table: dict[str, Any] = reader.take("files", of(dict), {})
    found: dict[str, str] = {}
    for place, source in table.items():
        try:
            found[_place(place)] = text(source)
        except ValueError as problem:
            reader.wrong("files", f"{place}: {problem}")
    return found


def _place(value: str) -> str:
    """Read a path on the machine: absolute, or relative to the home folder."""
    path = posixpath.normpath(value.removeprefix("~/"))
    if not value.strip() or ".." in path.split("/") or path in ("/", ".", "~"):
        raise ValueError(f"expected a path such as `/opt/data`, or `data` in the home folder, got {value!r}")
    return path


def script_file(script: str) -> str:
    """Return the file that `script` names; empty if it contains commands."""
    return script if _SCRIPT_FILE.fullmatch(script.strip()) else ""
