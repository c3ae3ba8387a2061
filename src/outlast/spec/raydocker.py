"""The reader of the `docker` section in a Ray cluster file. No IO.

Containers run as with `[machine] container`: with the machine's network, processes, shared memory and GPUs. Only
options of `docker run` that all container engines support are accepted; each of the others is a problem.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from outlast.spec.cluster import ContainerSpec
from outlast.spec.fields import container
from outlast.spec.reader import Reader, of, text

# Options that always hold, or have no effect on a container that lives as long as its machine.
_HAS_ANYWAY = {"--network": "host", "--net": "host", "--ipc": "host", "--pid": "host", "--gpus": "all"}
_OF_NO_USE = (
    "--shm-size",
    "--runtime",
    "--rm",
    "--detach",
    "-d",
    "-i",
    "-t",
    "-it",
    "--interactive",
    "--tty",
    "--init",
)
_WITHOUT_VALUE = ("--rm", "--detach", "-d", "-i", "-t", "-it", "--interactive", "--tty", "--init", "--privileged")
_SHORT = {"-e": "--env", "-v": "--volume"}
_ULIMIT = re.compile(r"[a-z]+=-?\d+(:-?\d+)?")
_VOLUME = re.compile(r"/[^:]*:/[^:]*(:ro|:rw)?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_CAPABILITY = re.compile(r"(CAP_)?[A-Z_]+")
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*")
NAME = "ray_container"


class Docker(msgspec.Struct, frozen=True, kw_only=True):
    """The container of the head, and the default container of workers."""

    head: ContainerSpec | None = None
    worker: ContainerSpec | None = None


def read_docker(reader: Reader) -> Docker:
    """Read every field that Ray knows."""
    image = reader.take("image", _image, "")
    images = {role: reader.take(f"{role}_image", _image, "") or image for role in ("head", "worker")}
    common: tuple[str, ...] = reader.take("run_options", _arguments, ())
    own: dict[str, tuple[str, ...]]
    own = {role: reader.take(f"{role}_run_options", _arguments, common[:0]) for role in ("head", "worker")}
    base = ContainerSpec(
        image="",
        name=reader.take("container_name", _name, "") or NAME,
        # `pull` is the old name. Ray pulls by default.
        pull=reader.take("pull_before_run", of(bool), reader.take("pull", of(bool), True)),
        podman=reader.take("use_podman", of(bool), False),
        gpus=not reader.take("disable_automatic_runtime_detection", of(bool), False),
    )
    reader.take("disable_shm_size_detection", of(bool), False)  # containers use the machine's shared memory
    reader.finish()
    spec = _with_options(base, common, reader, "run_options")
    found = {
        role: _with_options(msgspec.structs.replace(spec, image=images[role]), own[role], reader, f"{role}_run_options")
        for role in ("head", "worker")
    }
    return Docker(**{role: one for role, one in found.items() if one.image})


def of_kind(reader: Reader, worker: ContainerSpec | None) -> ContainerSpec | None:
    """Read the container of one worker type, with the default container of workers as the base."""
    if not reader.table:
        return worker
    image = reader.take("worker_image", _image, "")
    options: tuple[str, ...] = reader.take("worker_run_options", _arguments, ())
    base = worker or ContainerSpec(image="")
    changed = msgspec.structs.replace(
        base, image=image or base.image, pull=reader.take("pull_before_run", of(bool), base.pull)
    )
    reader.finish()
    if not changed.image:
        reader.wrong("worker_image", "missing: set it here or in the top-level `docker` section")
    return _with_options(changed, options, reader, "worker_run_options")


def _with_options(spec: ContainerSpec, given: Sequence[str], reader: Reader, field: str) -> ContainerSpec:
    env, volumes, ulimits, capabilities = dict(spec.env), [*spec.volumes], dict(spec.ulimits), [*spec.capabilities]
    takes: dict[str, Callable[[str], object]] = {
        "--env": lambda value: env.update([value.partition("=")[::2]]),
        "--volume": volumes.append,
        "--ulimit": lambda value: ulimits.update([value.partition("=")[::2]]),
        "--cap-add": lambda value: capabilities.append("CAP_" + value.removeprefix("CAP_")),
    }
    forms = {"--env": _VARIABLE, "--volume": _VOLUME, "--ulimit": _ULIMIT, "--cap-add": _CAPABILITY}
    for name, value, whole in _pairs(given):
        if _HAS_ANYWAY.get(name) == value or name in _OF_NO_USE:
            continue
        if name in takes and forms[name].fullmatch(value):
            takes[name](value)
        else:
            has = "containers have the machine's network, processes, shared memory and GPUs"
            why = _instead_of_mount(value) if name == "--mount" else f"{has}; supported options: {', '.join(takes)}"
            reader.wrong(field, f"`{whole}` is not supported: {why}")
    return msgspec.structs.replace(
        spec, env=env, volumes=tuple(volumes), ulimits=ulimits, capabilities=tuple(dict.fromkeys(capabilities))
    )


def _instead_of_mount(value: str) -> str:
    """Return the option to write instead of `--mount type=bind,source=/a,target=/b,readonly`."""
    fields = dict(part.strip().partition("=")[::2] for part in value.split(","))
    source = next((fields[name] for name in ("source", "src") if fields.get(name)), "")
    target = next((fields[name] for name in ("target", "destination", "dst") if fields.get(name)), "")
    if fields.get("type", "volume") != "bind" or not source or not target:
        return "only folders of the machine can be mounted: write `--volume /folder:/folder`"
    mode = ":ro" if fields.keys() & {"readonly", "ro"} and fields.get("readonly") != "false" else ""
    return f"write `--volume {source}:{target}{mode}`"


def _pairs(given: Sequence[str]) -> list[tuple[str, str, str]]:
    """Split options into name, value and original text: `--a=b`, `--a b`, or `--a` and `b` as two texts."""
    found: list[tuple[str, str, str]] = []
    rest = list(given)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        takes_value = word.startswith("-") and not equals and name not in _WITHOUT_VALUE
        if takes_value and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
            word = f"{word} {value}"
        found.append((_SHORT.get(name, name), value, word))
    return found


def _arguments(value: Any) -> tuple[str, ...]:
    """Read a list of texts; each may contain several arguments, as on a command line."""
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"expected a list of texts, got {value!r}")
    found: list[str] = []
    for item in value:
        # The result of a shell expansion is unknown here; the text is reported unchanged.
        found += [item] if "$" in item or "`" in item else shlex.split(item)
    return tuple(found)


def _image(value: Any) -> str:
    return "" if value in (None, "") else container(value)


def _name(value: Any) -> str:
    if value in (None, ""):
        return ""
    if not _NAME.fullmatch(text(value)):
        raise ValueError(f"invalid container name {value!r}: expected letters, digits and `_ . -`")
    return text(value)
