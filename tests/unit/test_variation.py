"""A new run like an earlier one: forms show fields as text, and only changed fields are parsed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outlast.app.variation import changed, project_files, texts_of
from outlast.errors import SpecError
from outlast.spec.parse import parse
from outlast.spec.spec import Spec

FULL: dict[str, Any] = {
    "name": "census",
    "command": ["python", "train.py", "--lr", "{lr}", "a b"],
    "params": {"lr": 0.1, "deep": True},
    "machine": {
        "cloud": "gcp",
        "cpus": "8+",
        "memory": "32GB..80GB",
        "gpu": "T4:2",
        "disk": "50GB",
        "spot": True,
        "zones": ["us-central1-a", "*"],
        "nodes": 2,
        "fallback": True,
    },
    "limits": {"cost_usd": 5, "deadline": "90m", "work": "45s", "steps": 100, "max_hours": 2, "crashes": 1},
}


def spec(**changes: Any) -> Spec:
    return parse({**FULL, **changes})


def test_a_form_that_is_sent_back_as_it_is_changes_nothing() -> None:
    alternatives = spec(machine={"cloud": "gcp", "gpu": ["H100", "T4:2"]})
    assert texts_of(alternatives)["machine.gpu"] == "H100:1, T4:2"
    for one in (
        alternatives,
        spec(),
        parse({"name": "x", "command": "true"}),
        spec(limits={"deadline": "2030-01-02T03:04:05Z"}),
    ):
        assert changed(one, texts_of(one), source="form") == one


def test_every_field_is_shown_as_a_spec_file_states_it() -> None:
    texts = texts_of(spec())
    assert texts["command"] == "python train.py --lr {lr} 'a b'"
    shown = {name.partition(".")[2]: text for name, text in texts.items() if "." in name}
    assert shown == {
        "lr": "0.1",
        "deep": "true",
        "cloud": "gcp",
        "type": "",
        "cpus": "8+",
        "memory": "32GB..80GB",
        "gpu": "T4:2",
        "disk": "50GB",
        "zones": "us-central1-a, *",
        "nodes": "2",
        "spot": "true",
        "fallback": "true",
        "cost_usd": "5",
        "deadline": "90m",
        "work": "45s",
        "steps": "100",
        "max_hours": "2",
        "crashes": "1",
    }


@pytest.mark.parametrize(
    ("field", "text", "as_stated"),
    [
        ("params.lr", "0.2", {"params": {"lr": 0.2, "deep": True}}),
        ("command", "python other.py 'c d'", {"command": ["python", "other.py", "c d"]}),
        ("machine.zones", "", {"machine": {**FULL["machine"], "zones": []}}),
        ("machine.spot", "false", {"machine": {**FULL["machine"], "spot": False}}),
        ("machine.gpu", "", {"machine": {k: v for k, v in FULL["machine"].items() if k != "gpu"}}),
        ("limits.deadline", "2h", {"limits": {**FULL["limits"], "deadline": "2h"}}),
        ("limits.cost_usd", "", {"limits": {k: v for k, v in FULL["limits"].items() if k != "cost_usd"}}),
    ],
)
def test_a_changed_field_is_what_a_spec_file_would_state(field: str, text: str, as_stated: dict[str, Any]) -> None:
    assert changed(spec(), {**texts_of(spec()), field: text}, source="form") == spec(**as_stated)


def test_all_wrong_fields_are_reported_by_name() -> None:
    wrong = {"limits.work": "soon", "machine.cpus": "many", "command": "", "machine.spot": "maybe"}
    with pytest.raises(SpecError) as problem:
        changed(spec(), {**texts_of(spec()), **wrong}, source="form")
    for name in ("work", "cpus", "command", "spot"):
        assert name in str(problem.value.problems)


def test_only_files_that_define_a_run_are_offered(tmp_path: Path) -> None:
    (tmp_path / "outlast.toml").write_text('command = "true"')
    (tmp_path / "a.toml").write_text('command = "true"')
    (tmp_path / "other.toml").write_text("[tool]")
    (tmp_path / "broken.toml").write_text("[")
    (tmp_path / "pyproject.toml").write_text('[tool.outlast]\ncommand = "true"')
    assert project_files(str(tmp_path)) == ["outlast.toml", "a.toml", "pyproject.toml"]
