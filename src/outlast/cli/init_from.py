"""`outlast init --from`: the file of another tool as an `outlast.toml`, with all that did not go along in its head."""

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
# Where the program keeps its checkpoints: without it, a run whose machine is taken away begins anew.
#[checkpoint]
#path = "checkpoints"
"""


def converted(file: str, folder: str) -> tuple[str, str]:
    """The text of the file, and the next command. Everything is checked before. Raises UsageError, SpecError."""
    from outlast.spec.skypilot import FIELDS
    from outlast.spec.toml import written

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
        why = "is neither a SkyPilot YAML (`run`, `resources`) nor a cluster file of Ray's (`cluster_name`, `provider`)"
        raise SpecError([why], source=file, hint="name the YAML of your task or your cluster")
    _tell(findings)
    text = _head(kind, os.path.basename(file), findings) + written(table)
    has_checkpoint = "cluster" in table or "tasks" in table
    return text + ("" if has_checkpoint else _CHECKPOINT), next_step


def _from_sky(file: str, folder: str, documents: list[Any]) -> tuple[dict[str, Any], Findings]:
    from outlast.spec.skypilot import from_sky

    def place(path: str) -> str:
        # SkyPilot tells paths from where it is called, we tell them from our file.
        if path.startswith(("/", "~")):
            return path
        return os.path.relpath(path or ".", folder)

    name = Project({}, folder=os.path.abspath(folder), source=file).name
    return from_sky(documents, source=file, name=name, place=place)


def _from_ray(file: str, documents: list[Any]) -> tuple[dict[str, Any], Findings]:
    from outlast.spec.raycluster import parse_ray
    from outlast.spec.rayexport import cluster_table

    if len(documents) != 1:
        raise SpecError([f"a cluster file is one document, and here are {len(documents)}"], source=file)
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


def _tell(findings: Findings) -> None:
    for said in findings.otherwise:
        note(f"otherwise: {_plain(said)}")
    for said in findings.left_out:
        note(f"left out: {_plain(said)}")


def _head(kind: str, file: str, findings: Findings) -> str:
    lines = [f"# From the {kind} `{_plain(file)}`. All fields are explained in docs/spec.md."]
    for title, found in (("Done otherwise", findings.otherwise), ("Left out", findings.left_out)):
        if found:
            lines += ["#", f"# {title}:", *(f"# - {_plain(said)}" for said in found)]
    return "".join(f"{line}\n" for line in lines) + "\n"


def _plain(said: str) -> str:
    """One line without what moves a cursor: names come from somebody else's file."""
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(said.split()))
