"""`outlast init --from`: converts the file of another tool, or a command line of torchrun, to an `outlast.toml`.

Its header lists all differences.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from outlast.cli.shared.project import Project, with_places
from outlast.cli.shared.terminal import note
from outlast.cli.shared.yaml_file import read_yaml
from outlast.errors import SpecError

if TYPE_CHECKING:
    from outlast.spec.convert import Findings

_RAYS = {"cluster_name", "provider", "available_node_types", "head_node_type"}

_CHECKPOINT = """
# Where the program keeps its checkpoints: without it, a preempted run starts from the beginning.
#[checkpoint]
#path = "checkpoints"
"""


def converted(file: str, folder: str) -> tuple[str, str]:
    """Return the checked text of the file, and the next command. Raises UsageError, SpecError."""
    from outlast.spec.skypilot import FIELDS
    from outlast.spec.toml import written
    from outlast.spec.torchrun import is_command

    if not os.path.lexists(file) and is_command(file):
        return _from_torchrun(file, folder), "outlast run"
    documents = read_yaml(file)
    known = {str(field) for document in documents if isinstance(document, Mapping) for field in document}
    if known & _RAYS:
        kind, next_step = "Ray cluster file", "outlast cluster up --dry-run"
        table, findings = _from_ray(file, documents)
        _check_cluster(table, file)
    elif known & FIELDS:
        kind, next_step = "SkyPilot YAML", "outlast run"
        table, findings = _from_sky(file, folder, documents)
        _check_run(table, file, folder)
    else:
        why = "is neither a SkyPilot YAML (`run`, `resources`) nor a Ray cluster file (`cluster_name`, `provider`)"
        raise SpecError([why], source=file, hint="name the YAML of your task or your cluster")
    _report(findings)
    text = _head(kind, os.path.basename(file), findings) + written(table)
    has_checkpoint = "cluster" in table or "tasks" in table
    return text + ("" if has_checkpoint else _CHECKPOINT), next_step


def _from_torchrun(line: str, folder: str) -> str:
    from outlast.spec.toml import written
    from outlast.spec.torchrun import from_torchrun

    name = Project({}, folder=os.path.abspath(folder), source="torchrun").name
    table, findings = from_torchrun(line, name=name)
    _check_run(table, "torchrun", folder)
    _report(findings)
    return _head("command line", line, findings) + written(table) + _CHECKPOINT


def _from_sky(file: str, folder: str, documents: list[Any]) -> tuple[dict[str, Any], Findings]:
    from outlast.spec.skypilot import from_sky

    def place(path: str) -> str:
        # In SkyPilot, paths are relative to the working directory; here they are relative to the file.
        if path.startswith(("/", "~")):
            return path
        return os.path.relpath(path or ".", folder)

    name = Project({}, folder=os.path.abspath(folder), source=file).name
    return from_sky(documents, source=file, name=name, place=place)


def _from_ray(file: str, documents: list[Any]) -> tuple[dict[str, Any], Findings]:
    from outlast.spec.raycluster import parse_ray
    from outlast.spec.rayexport import cluster_table

    if len(documents) != 1:
        raise SpecError([f"expected one YAML document, got {len(documents)}"], source=file)
    spec, notes = parse_ray(documents[0], source=file)
    table, findings = cluster_table(spec)
    findings.refuse(source=file, hint="nothing was written; see docs/from-ray.md")
    findings.otherwise += notes
    return table, findings


def _check_run(table: Mapping[str, Any], file: str, folder: str) -> None:
    from outlast.spec.parse import parse
    from outlast.spec.tasks import parse_tasks

    placed = with_places(Project({}, folder=os.path.abspath(folder), source=file), table)
    if "tasks" in placed:
        parse_tasks(placed, source=file)
    else:
        parse(placed, source=file)


def _check_cluster(table: Mapping[str, Any], file: str) -> None:
    from outlast.spec.cluster import parse_cluster

    parse_cluster(table, name="cluster", source=file)


def _report(findings: Findings) -> None:
    for text in findings.otherwise:
        note(f"changed: {_plain(text)}")
    for text in findings.left_out:
        note(f"left out: {_plain(text)}")


def _head(kind: str, file: str, findings: Findings) -> str:
    lines = [f"# From the {kind} `{_plain(file)}`. All fields are explained in docs/spec.md."]
    for title, found in (("Changed", findings.otherwise), ("Left out", findings.left_out)):
        if found:
            lines += ["#", f"# {title}:", *(f"# - {_plain(text)}" for text in found)]
    return "".join(f"{line}\n" for line in lines) + "\n"


def _plain(text: str) -> str:
    """Return one printable line: names come from a foreign file."""
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
