"""The conversion of a SkyPilot YAML to an `outlast.toml`: a task, a pipeline, or parallel tasks. No IO.

Nodes that address each other become the machines of a distributed run; independent ones become a group. Differences and
fields without a counterpart are reported. Services are refused: a converted file must not do something else than the
original.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outlast.spec.convert import Findings, Section, name_from, shown
from outlast.spec.fields import NODES_MAX
from outlast.spec.skyfiles import files_of
from outlast.spec.skymachine import machine_of

FIELDS = frozenset(
    {
        *("name", "workdir", "num_nodes", "resources", "envs", "secrets", "file_mounts", "setup", "run", "service"),
        *("pool", "volumes", "config", "experimental", "event_callback", "managed_secrets", "execution"),
    }
)
_NO_COUNTERPART = {
    "event_callback": "the story of a run has every event: `outlast show RUN --json`",
    "inputs": "experimental in SkyPilot",
    "outputs": "experimental in SkyPilot",
    "config": "configures SkyPilot",
    "experimental": "configures SkyPilot",
    "file_mounts_mapping": "internal to SkyPilot",
    "volume_mounts": "internal to SkyPilot",
    "api_server_access": "outlast has no server",
    "_metadata": "internal to SkyPilot",
}
_NODES = ("SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS", "SKYPILOT_SETUP_NODE_RANK", "SKYPILOT_SETUP_NODE_IPS")
# The same values on the machines of a distributed run.
_EXPORTS = {
    "SKYPILOT_NODE_RANK": "OUTLAST_NODE_RANK",
    "SKYPILOT_NODE_IPS": "OUTLAST_NODE_IPS",
    "SKYPILOT_SETUP_NODE_RANK": "OUTLAST_NODE_RANK",
    "SKYPILOT_SETUP_NODE_IPS": "OUTLAST_NODE_IPS",
    "SKYPILOT_NUM_NODES": "OUTLAST_NODES",
    "SKYPILOT_NUM_GPUS_PER_NODE": "OUTLAST_GPUS_PER_NODE",
}
# A launcher that starts one process group on several machines.
_LAUNCHER = re.compile(r"\btorchrun\b|\btorch\.distributed\b|--nnodes\b")
# The index of a job among the jobs that were launched together.
_SHARE = {"SKYPILOT_JOB_RANK": "0", "SKYPILOT_NUM_JOBS": "1"}
_VARIABLE = re.compile(r"SKYPILOT_[A-Z_]+")
# A placeholder: `<your-token>`.
_TO_FILL_IN = re.compile(r"<[^<>]*>")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def from_sky(
    documents: Sequence[Any], *, source: str, name: str, place: Callable[[str], str]
) -> tuple[dict[str, Any], Findings]:
    """Return the table and the findings. `name` is the default name. Raises SpecError."""
    findings = Findings()
    tables = [document for document in documents if document is not None]
    strange = [document for document in tables if not isinstance(document, Mapping)]
    if strange or not tables:
        findings.problems.append(f"expected a table of fields, got {shown(strange[0]) if strange else 'nothing'}")
    findings.refuse(source=source, hint="is this a SkyPilot YAML?")
    header = tables.pop(0) if len(tables) > 1 and not set(tables[0]) & {"run", "setup", "resources"} else None
    if header is None and len(tables) == 1:
        table = _task(findings.section(tables[0]), name, place)
    else:
        table = _several(findings, header, tables, name, place)
    hint = "nothing was written; docs/from-skypilot.md lists unsupported fields and alternatives"
    findings.refuse(source=source, hint=hint)
    return table, findings


def _several(
    findings: Findings,
    header: Mapping[str, Any] | None,
    tables: Sequence[Mapping[str, Any]],
    name: str,
    place: Callable[[str], str],
) -> dict[str, Any]:
    """Convert a pipeline of tasks in series, or parallel tasks that end with the primary ones."""
    top = findings.section(header or {})
    found: dict[str, Any] = {"name": name_from(top, "name", name)}
    parallel = str(top.take("execution") or "serial") == "parallel"
    primary = top.take("primary_tasks")
    top.finish("SkyPilot's header of a pipeline")
    tasks: dict[str, dict[str, Any]] = {}
    for index, table in enumerate(tables):
        section = findings.section(table, f"task {index + 1}")
        task = _task(section, f"task-{index + 1}", place)
        own = str(task.pop("name"))
        if "tasks" in task or "nodes" in task.get("machine", {}):
            section.wrong("num_nodes", "a task with several nodes cannot be part of a pipeline")
            continue
        if own in tasks:
            section.wrong("name", f"`{own}` is also the name of another task")
        if tasks and not parallel:
            before = list(tasks)[-1]
            task["after"], tasks[before]["ready"] = before, "done"
        tasks[own] = task
    for one in primary if parallel and isinstance(primary, list) else []:
        for own, task in tasks.items():
            if own not in primary and one in tasks:
                task["until"] = [*task.get("until", []), one]
    return {**found, "tasks": tasks}


def _task(section: Section, name: str, place: Callable[[str], str]) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name_from(section, "name", name)}
    for field, what in (("service", "a service that answers requests"), ("pool", "a pool of waiting workers")):
        if section.take(field):
            section.wrong(field, f"{what} is not supported: a run must end")
    command = section.take("run")
    if not isinstance(command, str) or not command.strip():
        section.wrong(
            "run", "missing: set the command" if command is None else f"expected commands as text, got {shown(command)}"
        )
        command = "true"
    env, secrets = _variables(section)
    setup = section.take("setup")
    if setup is not None and not isinstance(setup, str):
        section.wrong("setup", f"expected commands as text, got {shown(setup)}")
        setup = None
    below = _below(section, "file_mounts")
    data, links = files_of(below, env, place)
    lines = [*links, *([setup] if setup and setup.strip() else [])]
    found["command"] = command
    if lines:
        found["setup"] = "\n".join(lines)
    if setup:
        section.otherwise("setup", "runs in each attempt, not once per machine; use `[image]` to run it once")
    code = _code(section, place)
    machine, limits = machine_of(_below(section, "resources"))
    volumes = _volumes(section)
    script = f"{setup or ''}\n{command}"
    together = bool(set(_VARIABLE.findall(script)) & set(_NODES) or _LAUNCHER.search(script))
    nodes = _nodes(section, script, env, machine, together=together)
    if nodes > 1 and together:
        machine["nodes"] = nodes
        found |= {field: _exports(found[field]) + found[field] for field in ("setup", "command") if field in found}
    parts = {"env": env, "secrets": secrets, "machine": machine, "code": code, "data": data, "volumes": volumes}
    parts["limits"] = limits
    found |= {field: value for field, value in parts.items() if value}
    section.drop(_NO_COUNTERPART)
    section.finish("SkyPilot")
    if nodes > 1 and not together:
        own = found.pop("name")
        return {"name": own, "tasks": {"node": {**found, "count": nodes}}}
    return found


def _below(section: Section, field: str) -> Section:
    value = section.take(field)
    if value is not None and not isinstance(value, Mapping):
        section.wrong(field, f"expected a table, got {shown(value)}")
        value = {}
    return Section(value or {}, section.name(field), section.findings)


def _code(section: Section, place: Callable[[str], str]) -> dict[str, Any]:
    value = section.take("workdir")
    if value is None:
        section.otherwise("workdir", "not set: the folder of outlast.toml is sent")
        return {}
    if isinstance(value, str):
        path = place(value)
        return {} if path == "." else {"path": path}
    if not isinstance(value, Mapping) or not isinstance(value.get("url"), str):
        section.wrong("workdir", "expected a folder, or a table with `url`")
        return {}
    inner = Section(value, "workdir", section.findings)
    found = {"git": inner.take("url")}
    if ref := inner.take("ref"):
        found["ref"] = str(ref)
    inner.finish("SkyPilot's workdir")
    return found


def _variables(section: Section) -> tuple[dict[str, Any], dict[str, Any]]:
    env: dict[str, Any] = {}
    secrets: dict[str, Any] = {}
    given = _below(section, "envs")
    for name in given.table:
        value = given.take(name)
        if value is None or (isinstance(value, str) and _TO_FILL_IN.fullmatch(value)):
            given.otherwise(str(name), "has no value: taken from your environment, as a secret")
            secrets[str(name)] = True
        elif isinstance(value, str | int | float | bool):
            env[str(name)] = value if not isinstance(value, float) else str(value)
        else:
            given.wrong(str(name), f"expected text, got {shown(value)}")
    hidden, managed = section.take("secrets"), section.take("managed_secrets")
    for name in [*(hidden if isinstance(hidden, Mapping | list) else []), *(managed or [])]:
        plain = str(name) if isinstance(name, str) else next(iter(name), "") if isinstance(name, Mapping) else ""
        if not _NAME.fullmatch(plain):
            section.left_out("secrets", "a name is not valid for a variable; pass it to the run with `--secret NAME`")
            continue
        if isinstance(hidden, Mapping) and hidden.get(plain):
            section.otherwise("secrets", f"the value of `{plain}` is not copied: export it before you submit")
        elif isinstance(hidden, Mapping) and hidden.get(plain) == "":
            section.otherwise(
                "secrets", f"`{plain}` is empty: export it before you submit (`{plain}=` suffices), or remove it"
            )
        secrets[plain] = True
    return env, secrets


def _volumes(section: Section) -> dict[str, str]:
    found: dict[str, str] = {}
    below = _below(section, "volumes")
    for path in below.table:
        value = below.take(path)
        if isinstance(value, str) and value:
            found[str(path)] = value
            below.otherwise(str(path), f"create it once with `outlast volume create {value} --size SIZE`")
        else:
            below.left_out(str(path), "a disk of one machine; see `disk` in [machine]")
    return found


def _exports(script: str) -> str:
    """Return the line that sets SkyPilot's variables which a script of a distributed run uses."""
    used = sorted(set(_VARIABLE.findall(script)) & set(_EXPORTS))
    return "export " + " ".join(f'{name}="${_EXPORTS[name]}"' for name in used) + "\n" if used else ""


def _nodes(section: Section, script: str, env: dict[str, Any], machine: Mapping[str, Any], *, together: bool) -> int:
    """Return the number of nodes, and add SkyPilot's variables to `env` where their values are known."""
    value = section.take("num_nodes")
    nodes = 1 if value is None else value
    most = NODES_MAX if together else 1000
    if isinstance(nodes, bool) or not isinstance(nodes, int) or not 1 <= nodes <= most:
        section.wrong("num_nodes", f"expected a whole number between 1 and {most}, got {shown(value)}")
        return 1
    used = set(_VARIABLE.findall(script))
    gpus = str(machine.get("gpu", ":0")).rpartition(":")[2]
    known = {"SKYPILOT_NUM_NODES": str(nodes), "SKYPILOT_NUM_GPUS_PER_NODE": gpus}
    if shares := sorted(used & set(_SHARE)):
        known |= _SHARE
        section.otherwise(
            "run", f"{', '.join(shares)}: set for a single job; for several, change `[env]` and submit again"
        )
    if nodes == 1:
        known |= dict.fromkeys(_NODES[::2], "0") | dict.fromkeys(_NODES[1::2], "127.0.0.1")
    for name in sorted(used):
        if nodes > 1 and together and name in _EXPORTS:
            continue
        if name in known:
            env[name] = known[name]
        elif name not in _NODES:
            section.left_out("run", f"`{name}` is not set; use `OUTLAST_RUN` and `OUTLAST_ATTEMPT`")
    return nodes
