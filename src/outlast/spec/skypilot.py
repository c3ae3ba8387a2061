"""A SkyPilot YAML as the table of an `outlast.toml`: a task, a pipeline, or tasks side by side. No IO.

What maps is mapped, what is done otherwise is said, what has no counterpart is named; a service and a training whose
nodes march in step are refused, for a file that is accepted and does something else would be worse than none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outlast.spec.convert import Findings, Section, name_from, shown
from outlast.spec.skyfiles import files_of
from outlast.spec.skymachine import machine_of

FIELDS = frozenset(
    {
        *("name", "workdir", "num_nodes", "resources", "envs", "secrets", "file_mounts", "setup", "run", "service"),
        *("pool", "volumes", "config", "experimental", "event_callback", "managed_secrets", "execution"),
    }
)
_NO_COUNTERPART = {
    "event_callback": "the story of a run tells every event: `outlast show RUN --json`",
    "inputs": "it is an experiment of SkyPilot's",
    "outputs": "it is an experiment of SkyPilot's",
    "config": "it sets SkyPilot itself",
    "experimental": "it sets SkyPilot itself",
    "file_mounts_mapping": "it is SkyPilot's own",
    "volume_mounts": "it is SkyPilot's own",
    "api_server_access": "there is no server",
    "_metadata": "it is SkyPilot's own",
}
_NODES = ("SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS", "SKYPILOT_SETUP_NODE_RANK", "SKYPILOT_SETUP_NODE_IPS")
# Which of the jobs it is that were launched at once.
_SHARE = {"SKYPILOT_JOB_RANK": "0", "SKYPILOT_NUM_JOBS": "1"}
_VARIABLE = re.compile(r"SKYPILOT_[A-Z_]+")
# `<your-token>`: what somebody is to write there.
_TO_FILL_IN = re.compile(r"<[^<>]*>")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def from_sky(
    documents: Sequence[Any], *, source: str, name: str, place: Callable[[str], str]
) -> tuple[dict[str, Any], Findings]:
    """The table and what is to be told about it. `name` is for a file that has none. Raises SpecError."""
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
    hint = "nothing was written; docs/from-skypilot.md says what has no counterpart, and what to do instead"
    findings.refuse(source=source, hint=hint)
    return table, findings


def _several(
    findings: Findings,
    header: Mapping[str, Any] | None,
    tables: Sequence[Mapping[str, Any]],
    name: str,
    place: Callable[[str], str],
) -> dict[str, Any]:
    """A pipeline: each task after the one before is done. Or all at once, released with the primary ones."""
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
        if "tasks" in task:
            section.wrong("num_nodes", "a task of several nodes cannot be one of several tasks")
            continue
        if own in tasks:
            section.wrong("name", f"`{own}` is the name of another task as well")
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
            section.wrong(field, f"{what} cannot be had: a run ends")
    command = section.take("run")
    if not isinstance(command, str) or not command.strip():
        section.wrong("run", "missing; what shall the run do?" if command is None else "expected commands as text")
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
        section.otherwise("setup", "is run in each attempt, not once a machine; `[image]` does it once for all")
    code = _code(section, place)
    machine, limits = machine_of(_below(section, "resources"))
    volumes = _volumes(section)
    nodes = _nodes(section, f"{setup or ''}\n{command}", env, machine)
    parts = {"env": env, "secrets": secrets, "machine": machine, "code": code, "data": data, "volumes": volumes}
    parts["limits"] = limits
    found |= {field: value for field, value in parts.items() if value}
    section.drop(_NO_COUNTERPART)
    section.finish("SkyPilot")
    if nodes > 1:
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
        section.otherwise("workdir", "there is none: the folder of outlast.toml goes along all the same")
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
            given.otherwise(str(name), "has no value: it is taken from your environment, as a secret")
            secrets[str(name)] = True
        elif isinstance(value, str | int | float | bool):
            env[str(name)] = value if not isinstance(value, float) else str(value)
        else:
            given.wrong(str(name), f"expected text, got {shown(value)}")
    hidden, managed = section.take("secrets"), section.take("managed_secrets")
    for name in [*(hidden if isinstance(hidden, Mapping | list) else []), *(managed or [])]:
        plain = str(name) if isinstance(name, str) else next(iter(name), "") if isinstance(name, Mapping) else ""
        if not _NAME.fullmatch(plain):
            section.left_out("secrets", "one is no name of a variable; give it to the run with `--secret NAME`")
            continue
        if isinstance(hidden, Mapping) and hidden.get(plain):
            section.otherwise("secrets", f"the value of `{plain}` is not copied: export it before you submit")
        elif isinstance(hidden, Mapping) and hidden.get(plain) == "":
            section.otherwise("secrets", f"`{plain}` may be empty there: export it, `{plain}=` will do, or take it out")
        secrets[plain] = True
    return env, secrets


def _volumes(section: Section) -> dict[str, str]:
    found: dict[str, str] = {}
    below = _below(section, "volumes")
    for path in below.table:
        value = below.take(path)
        if isinstance(value, str) and value:
            found[str(path)] = value
            below.otherwise(str(path), f"make it with `outlast volume create {value} --size SIZE`, once")
        else:
            below.left_out(str(path), "a disk for one machine alone; see `disk` in [machine]")
    return found


def _nodes(section: Section, script: str, env: dict[str, Any], machine: Mapping[str, Any]) -> int:
    """How many; the variables that SkyPilot would set, where their values can be known before."""
    value = section.take("num_nodes")
    nodes = 1 if value is None else value
    if isinstance(nodes, bool) or not isinstance(nodes, int) or not 1 <= nodes <= 1000:
        section.wrong("num_nodes", f"{shown(value)} is no number of machines between 1 and 1000")
        return 1
    used = set(_VARIABLE.findall(script))
    gpus = str(machine.get("gpu", ":0")).rpartition(":")[2]
    known = {"SKYPILOT_NUM_NODES": str(nodes), "SKYPILOT_NUM_GPUS_PER_NODE": gpus}
    if shares := sorted(used & set(_SHARE)):
        known |= _SHARE
        section.otherwise(
            "run", f"{', '.join(shares)}: the one job of one; for several, change `[env]` and submit again"
        )
    if nodes == 1:
        known |= dict.fromkeys(_NODES[::2], "0") | dict.fromkeys(_NODES[1::2], "127.0.0.1")
    elif marching := sorted(used & set(_NODES)):
        why = f"{nodes} nodes that know each other ({', '.join(marching)}) would have to start and move together"
        section.wrong("num_nodes", f"{why}: use a cluster of Ray, or one larger machine")
    for name in sorted(used):
        if name in known:
            env[name] = known[name]
        elif name not in _NODES:
            section.left_out("run", f"`{name}` is not set; `OUTLAST_RUN` and `OUTLAST_ATTEMPT` say who and which")
    return nodes
