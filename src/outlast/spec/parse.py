"""The parser of `outlast.toml`: checks every field and reports all problems at once. No IO."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from outlast.clouds.traits import traits_of
from outlast.errors import SpecError
from outlast.spec import fields, quantity, resources
from outlast.spec.checkpoint import read_checkpoint
from outlast.spec.cluster import read_cluster
from outlast.spec.command import check_placeholders
from outlast.spec.gpus import GpuChoice
from outlast.spec.image import read_image
from outlast.spec.network import CloudSettings, NetworkSpec, read_clouds
from outlast.spec.notify import read_notify
from outlast.spec.reader import Reader, amount, count, of, text, texts
from outlast.spec.requirements import Range
from outlast.spec.resume_option import problems_in
from outlast.spec.retention import read_retention
from outlast.spec.spec import CodeSpec, EnvironmentSpec, LimitSpec, MachineSpec, ParamValue, Spec
from outlast.spec.sweep import first_of, read_sweep

_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_EXCLUSIVE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,99}")
_PARAM = re.compile(r"^[A-Za-z_][A-Za-z0-9_.-]*$")

_NO_PARAM: ParamValue = ""
_NO_COMMAND: str | tuple[str, ...] = ""


def parse(table: Mapping[str, Any], *, source: str = "outlast.toml") -> Spec:
    """Return the spec. Raises SpecError with all problems."""
    reader = Reader(table)
    spec = _read(reader)
    _check_characters(reader, table)
    if reader.problems:
        raise SpecError(
            reader.problems, source=source, hint="see docs/spec.md, or `outlast init` for a commented example"
        )
    return spec


def _check_characters(reader: Reader, table: Mapping[str, Any]) -> None:
    """Report characters that no environment variable, command or JSON can contain."""
    for field, value in table.items():
        if isinstance(value, Mapping):
            _check_characters(Reader(value, section=field, problems=reader.problems), value)
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, str) and "\0" in item:
                reader.wrong(field, "must not contain a NUL character")
            elif isinstance(item, str) and not item.isascii() and any("\ud800" <= c <= "\udfff" for c in item):
                reader.wrong(field, "contains bytes that are not valid UTF-8")


def _read(reader: Reader) -> Spec:
    name = reader.take("name", fields.name, "run")
    if "command" not in reader.table:
        reader.wrong("command", 'missing: set it, e.g. command = "python train.py", or give the command after `--`')
    command = reader.take("command", _command, _NO_COMMAND)
    params = _params(reader.section_of("params"))
    searched = reader.section_of("sweep")
    sweep = read_sweep(searched) if searched.table else None
    if sweep is not None:
        # A single run of this file uses the first value of each searched parameter, unless `[params]` sets it.
        params = {**{name: first_of(found) for name, found in sweep.params.items()}, **params}
    # Without parameters, braces may belong to the shell.
    for problem in check_placeholders(command, params) if params else problems_in(command):
        reader.wrong("command", problem)
    spec = Spec(
        name=name,
        command=command,
        setup=reader.take("setup", text, ""),
        interactive=reader.take("interactive", of(bool), False),
        params=params,
        env=_env(reader.section_of("env")),
        secrets=_secrets(reader),
        machine=_placed(_machine(reader.section_of("machine")), read_clouds(reader.section_of("clouds"))),
        code=read_code(reader.section_of("code")),
        environment=read_environment(reader),
        data=_data(reader.section_of("data")),
        volumes=resources.volumes(reader.section_of("volumes")),
        databases=resources.databases(reader),
        checkpoint=read_checkpoint(reader.section_of("checkpoint")),
        output_path=_outputs(reader.section_of("outputs")),
        limits=_limits(reader.section_of("limits")),
        notify=read_notify(reader.section_of("notify")),
        retention=read_retention(reader.section_of("retention")),
        sweep=sweep,
        exclusive=reader.take("exclusive", _exclusive, ""),
    )
    if spec.interactive and spec.machine.container:
        reader.wrong(
            "interactive",
            "cannot be combined with `[machine] container`: a command in a container has no terminal",
        )
    if spec.interactive and spec.machine.nodes > 1:
        reader.wrong("interactive", "cannot be combined with `[machine] nodes`: a terminal belongs to one machine")
    resources.check(reader, spec)
    if "image" in reader.table:
        spec = msgspec.structs.replace(
            spec, image=read_image(reader.section_of("image"), spec.name, spec.machine.cloud)
        )
    if "cluster" in reader.table:
        read_cluster(reader.section_of("cluster"), spec.name, spec.machine.cloud)
    reader.take("cluster", of(dict), {})
    reader.take("workspace", text, "")
    reader.finish()
    return spec


def _exclusive(value: Any) -> str:
    name = text(value).strip()
    if not _EXCLUSIVE.fullmatch(name):
        raise ValueError(f"invalid name {value!r}: expected letters, digits and `. _ : / -`, such as `db:genomes`")
    return name


def _command(value: Any) -> str | tuple[str, ...]:
    if isinstance(value, list):
        argv = tuple(of(str)(item) for item in value)
        if not argv or not argv[0].strip():
            raise ValueError("must not be empty")
        return argv
    return text(value)


def _params(reader: Reader) -> dict[str, ParamValue]:
    params: dict[str, ParamValue] = {}
    for field in reader.table:
        params[field] = reader.take(field, _param, _NO_PARAM)
        if not _PARAM.match(field):
            reader.wrong(field, "invalid name of a parameter: expected letters, digits, `_`, `-` and `.`")
    return params


def _param(value: Any) -> ParamValue:
    if not isinstance(value, str | int | float | bool):
        raise ValueError(f"expected text, a number or true/false, got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        # The workspace stores the spec as JSON, which has no such number.
        raise ValueError(f'expected a finite number, got {value}; write it as text: "{value}"')
    return value


def _env(reader: Reader) -> dict[str, str]:
    env: dict[str, str] = {}
    for field in reader.table:
        value = reader.take(field, _param, _NO_PARAM)
        env[field] = str(value).lower() if isinstance(value, bool) else str(value)
        _check_variable(reader, field)
    return env


def _check_variable(reader: Reader, field: str) -> None:
    if not _VARIABLE.match(field):
        reader.wrong(field, "invalid name of an environment variable: expected letters, digits and `_`")
    elif field.startswith("OUTLAST_") and field != "OUTLAST_TRACKERS":
        reader.wrong(field, "names that start with OUTLAST_ are reserved; choose another")


def _secrets(reader: Reader) -> dict[str, str]:
    """Read `secrets = ["TOKEN"]`, or `[secrets]` with `TOKEN = "LOCAL_NAME"` (`true`: the same name)."""
    if isinstance(reader.table.get("secrets"), list):
        names: tuple[str, ...] = reader.take("secrets", texts, ())
        inner = Reader(dict.fromkeys(names, True), section="secrets", problems=reader.problems)
    else:
        inner = reader.section_of("secrets")
    found: dict[str, str] = {}
    for field in inner.table:
        value = inner.take(field, _secret_source, "")
        if not _VARIABLE.match(field):
            # The message omits the value: in `NAME=VALUE` it is the secret.
            inner.problems.append("[secrets]: expected names of environment variables, never the secrets themselves")
            continue
        _check_variable(inner, field)
        found[field] = value or field
    return found


def _secret_source(value: Any) -> str:
    if value is True:
        return ""
    if isinstance(value, str) and _VARIABLE.match(value):
        return value
    # The message omits the value: it may be the secret.
    raise ValueError(
        "expected the name of the local variable that holds it (or true for the same name), never the secret itself"
    )


def _machine(reader: Reader) -> MachineSpec:
    gpus: tuple[GpuChoice, ...] = reader.take("gpu", quantity.gpu_choices, ())
    defaults = MachineSpec()
    clouds: tuple[str, ...] = reader.take("cloud", fields.clouds, defaults.clouds)
    nodes, nodes_least = reader.take("nodes", fields.nodes, (1, 0))
    machine = MachineSpec(
        cloud=clouds[0],
        other_clouds=clouds[1:],
        cpus=reader.take("cpus", quantity.number_range, defaults.cpus),
        memory_gb=reader.take("memory", quantity.size_range_gb, defaults.memory_gb),
        gpu=gpus[0].name if gpus else "",
        gpus=gpus[0].count if gpus else 0,
        other_gpus=gpus[1:],
        disk_gb=reader.take("disk", quantity.size_gb, defaults.disk_gb),
        spot=reader.take("spot", of(bool), defaults.spot),
        fallback=reader.take("fallback", of(bool), defaults.fallback),
        type=reader.take("type", text, ""),
        image=reader.take("image", text, ""),
        container=reader.take("container", fields.container, ""),
        zones=reader.take("zones", texts, ()),
        exclude_zones=reader.take("exclude_zones", texts, ()),
        reservation=reader.take("reservation", fields.reservation, ""),
        nodes=nodes,
        nodes_least=nodes_least,
    )
    machine = _with_defaults(machine, reader.table)
    if machine.reservation and (why := _why_no_reservation(machine)):
        reader.wrong("reservation", why)
    if len(clouds) > 1 and machine.type:
        reader.wrong(
            "type", "cannot be combined with several clouds, whose types differ; use `cpus`, `memory` and `gpu` instead"
        )
    reader.finish()
    return machine


def _why_no_reservation(machine: MachineSpec) -> str:
    """Return why a machine cannot be of a reservation; empty if it can. A reservation has one type in one zone."""
    if machine.other_clouds or not traits_of(machine.cloud).remote:
        return "a reservation is of one public cloud: set `cloud`"
    if machine.spot:
        return "a reservation has no spot machines: set `spot = false`"
    if not machine.type or len(machine.zones) != 1 or "*" in machine.zones:
        return "a reservation has one type in one zone: set `type`, and one zone in `zones`"
    return ""


def _placed(machine: MachineSpec, settings: Mapping[str, CloudSettings]) -> MachineSpec:
    """Return the machine with the regions, the image and the networks that `[clouds]` has for its clouds."""
    own = {name: settings[name] for name in machine.clouds if name in settings}
    networks = {name: one.network for name, one in own.items() if one.network != NetworkSpec()}
    machine = msgspec.structs.replace(machine, networks=networks)
    if not machine.zones:
        machine = msgspec.structs.replace(machine, zones=tuple(zone for one in own.values() for zone in one.regions))
    if not machine.image and not machine.other_clouds and machine.cloud in own:
        machine = msgspec.structs.replace(machine, image=own[machine.cloud].image)
    return machine


def _with_defaults(machine: MachineSpec, table: Mapping[str, Any]) -> MachineSpec:
    """Return the machine with the size that its cloud gives to a run that states none."""
    traits = [traits_of(cloud) for cloud in machine.clouds]
    if "disk" not in table:
        disk_gb = max(one.gpu_disk_gb if machine.gpu else one.disk_gb for one in traits)
        machine = msgspec.structs.replace(machine, disk_gb=disk_gb)
    if not {"type", "cpus", "memory"} & table.keys():
        # A multiple of the GPUs: each needs processes that feed it. Every alternative must fit.
        gpus = min((one.count for one in machine.gpu_choices), default=0)
        cpus = max(one.gpu_cpus * gpus if gpus else one.cpus for one in traits)
        memory_gb = max(one.gpu_memory_gb * gpus if gpus else one.memory_gb for one in traits)
        machine = msgspec.structs.replace(machine, cpus=Range(low=cpus), memory_gb=Range(low=memory_gb))
    return machine


def read_code(reader: Reader) -> CodeSpec:
    if "git" in reader.table and "path" in reader.table:
        reader.wrong("git", "cannot be combined with `path`; set one of the two")
    if "ref" in reader.table and "git" not in reader.table:
        reader.wrong("ref", "requires `git`")
    code = CodeSpec(
        path=reader.take("path", text, "."),
        git=reader.take("git", _git_url, ""),
        ref=reader.take("ref", text, "HEAD"),
        size_max_gb=reader.take("size_max", quantity.size_gb, CodeSpec().size_max_gb),
    )
    reader.finish()
    return code


def read_environment(reader: Reader) -> EnvironmentSpec:
    """Read `environment = "host"`, or `[environment]` with `from`, `python`, `extras` and `torch`."""
    if isinstance(reader.table.get("environment"), str):
        return EnvironmentSpec(source=reader.take("environment", _environment_source, "auto"))
    inner = reader.section_of("environment")
    environment = EnvironmentSpec(
        source=inner.take("from", _environment_source, "auto"),
        python=inner.take("python", _python, ""),
        extras=inner.take("extras", texts, ()),
        torch=inner.take("torch", _torch, ""),
        python_mirror=inner.take("python_mirror", _mirror, ""),
    )
    inner.finish()
    return environment


def _environment_source(value: Any) -> str:
    source = text(value)
    return source if source in ("auto", "none", "host") else fields.inside(source)


def _python(value: Any) -> str:
    version = text(value).strip()
    if not re.fullmatch(r"3\.\d+", version):
        raise ValueError(f'invalid version of Python {value!r}: expected one such as "3.12"')
    return version


def _mirror(value: Any) -> str:
    url = text(value).strip()
    if not re.fullmatch(r"https?://\S+", url):
        raise ValueError(f"invalid mirror of Pythons {value!r}: expected an http(s) URL")
    return url


def _torch(value: Any) -> str:
    backend = text(value).strip()
    if not re.fullmatch(r"cpu|cu\d{2,3}|rocm\d+(\.\d+)*|xpu", backend):
        raise ValueError(f'invalid backend of PyTorch {value!r}: expected one such as "cpu" or "cu128"')
    return backend


def _git_url(value: Any) -> str:
    url = text(value)
    if re.search(r"://[^/@]*:[^/@]*@", url):
        # The message omits the URL: it contains a password.
        raise ValueError("must not contain a password; give the machine a credential helper or a deploy key instead")
    return url


def _data(reader: Reader) -> dict[str, str]:
    data: dict[str, str] = {}
    for field in reader.table:
        source = reader.take(field, text, "")
        try:
            data[fields.inside(field)] = source
        except ValueError as problem:
            reader.wrong(field, str(problem))
    return data


def _outputs(reader: Reader) -> str:
    path = reader.take("path", fields.inside, "outputs")
    reader.finish()
    return path


def _limits(reader: Reader) -> LimitSpec:
    defaults = LimitSpec()
    deadline_s, deadline_at = reader.take("deadline", quantity.deadline, (0.0, 0.0))
    limits = LimitSpec(
        cost_usd=reader.take("cost_usd", amount, 0.0),
        deadline_s=deadline_s,
        deadline_at=deadline_at,
        work_s=reader.take("work", quantity.duration_s, 0.0),
        steps=reader.take("steps", count, 0),
        max_s=reader.take("max_hours", amount, 0.0) * 3600.0,
        crashes=reader.take("crashes", count, defaults.crashes),
        retry_on_exit=reader.take("retry_on_exit", fields.exit_codes, ()),
        fail_on_exit=reader.take("fail_on_exit", fields.exit_codes, ()),
        no_progress=reader.take("no_progress", count, defaults.no_progress),
        hang_after_s=reader.take("hang_after", quantity.duration_s, 0.0),
        idle_gpu_s=reader.take("idle_gpu", quantity.duration_s, 0.0),
        keep_on_failure_s=reader.take("keep_on_failure", quantity.duration_s, 0.0),
    )
    for code in sorted({*limits.retry_on_exit} & {*limits.fail_on_exit}):
        reader.wrong("fail_on_exit", f"{code} is in `retry_on_exit`, too")
    reader.finish()
    return limits
