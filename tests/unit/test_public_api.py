"""The public names of `import outlast`, and the fields of `outlast.submit`."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.conventions.sources import document

import outlast
from outlast.app.metrics import columns
from outlast.app.project import Project
from outlast.app.submission import FIELDS, MACHINE_FIELDS, SOURCE, plain, spec_of_fields, table_of
from outlast.errors import SpecError, UsageError
from outlast.runs.metrics import Curves, Point
from outlast.spec.spec import Spec

# Removing or renaming one of these breaks programs of users.
NAMES = {
    "CallFailed",
    "DelayedCall",
    "Executor",
    "Interrupted",
    "NoSuchRun",
    "OutlastError",
    "OverLimit",
    "Run",
    "RunCancelled",
    "RunFailed",
    "Space",
    "SpecError",
    "StoreUnreachable",
    "Training",
    "UsageError",
    "WaitTimeout",
    "WorkspaceError",
    "drill",
    "register_joblib",
    "submit",
    "trainer",
    "training",
    "workspace",
}


def test_the_public_names_are_these_and_each_is_documented() -> None:
    assert set(outlast.__all__) == NAMES
    text = document("python.md")
    for name in NAMES:
        assert getattr(outlast, name) is not None
        assert f"`{name}" in text or f"outlast.{name}" in text, f"docs/python.md does not mention {name}"


def test_every_method_of_a_run_and_a_workspace_is_documented() -> None:
    text = document("python.md")
    for kind, prefix in ((outlast.Run, "run."), (outlast.Space, "space.")):
        for name in vars(kind):
            if not name.startswith("_"):
                assert f"`{prefix}{name}" in text, f"docs/python.md does not mention {prefix}{name}"


def test_importing_outlast_loads_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import outlast; print(sorted(set(sys.modules) - before))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() in ("['outlast']", "['__future__', 'outlast']")


def test_packages_that_share_a_public_name_can_be_called() -> None:
    import outlast.submit.run
    import outlast.workspace

    space = outlast.workspace("memory://packages")
    assert space.url == "memory://packages"
    with pytest.raises(outlast.SpecError):
        outlast.submit("", workspace=space)
    import outlast.drill.judge

    with pytest.raises(outlast.UsageError, match="preemptions: 0 is not between 1 and 50"):
        outlast.drill("true", workspace=space, preemptions=0)
    with pytest.raises(outlast.UsageError, match="grace: "):
        outlast.drill("true", workspace=space, grace="soon")


def spec(command: Any = "python3 train.py {lr}", **fields: Any) -> Spec:
    project = Project({}, folder="/code", source=SOURCE, nearest=False)
    return spec_of_fields(command, fields, project=project, report=lambda _: None)


@dataclasses.dataclass
class _Limits:
    cost_usd: float
    deadline: str | None = None


class _Scalar:
    """A number of numpy."""

    def item(self) -> float:
        return 0.5


def test_fields_are_those_of_the_file() -> None:
    found = spec(
        params={"lr": _Scalar()},
        gpu="T4",
        cloud=("gcp", "aws"),
        checkpoint=Path("saved"),
        outputs="results",
        env={"WORKERS": 4},
        secrets=["TOKEN"],
        limits=_Limits(cost_usd=3),
        environment="none",
        image="family",
    )
    assert found.params == {"lr": 0.5}
    assert (found.machine.gpu, found.machine.gpus, found.machine.clouds) == ("T4", 1, ("gcp", "aws"))
    assert (found.machine.image, found.checkpoint.path, found.output_path) == ("family", "saved", "results")
    assert (found.env, found.secrets) == ({"WORKERS": "4"}, {"TOKEN": "TOKEN"})
    assert found.limits.cost_usd == 3
    assert found.environment.source == "none"
    assert found.command == "python3 train.py {lr}"


def test_gpus_may_be_alternatives() -> None:
    assert [str(one) for one in spec(gpu=("H100", "T4:2")).machine.gpu_choices] == ["H100:1", "T4:2"]


def test_a_list_of_arguments_is_a_command() -> None:
    assert spec(["python3", Path("train.py")]).command == ("python3", "train.py")


def test_all_problems_are_listed_at_once() -> None:
    with pytest.raises(SpecError) as raised:
        spec(params={"lr": [1]}, gppu="T4", gpu=3, machine={"gpu": "A100", "cpus": "x"}, limits={"crash": 1})
    text = str(raised.value)
    for part in (
        "gppu: unknown argument; did you mean `gpu`?",
        "gpu: given twice, as an argument and in `machine`",
        "[params] lr: expected text, a number or true/false",
        "[machine] gpu: invalid GPU 3",
        "[machine] cpus: invalid range 'x'",
        "[limits] crash: unknown field; did you mean `crashes`?",
    ):
        assert part in text
    assert len(raised.value.problems) == 6


@pytest.mark.parametrize("command", ["  ", [], ["python", 3]], ids=repr)
def test_an_invalid_command_is_a_problem_of_the_command(command: Any) -> None:
    with pytest.raises(SpecError, match="command: "):
        spec(command)


def test_a_misspelled_parameter_names_the_argument() -> None:
    project = Project({"params": {"lr": 1}, "command": "python3 train.py {lr}"}, folder="/code", source="outlast.toml")
    with pytest.raises(UsageError, match=r"^params: unknown parameter `lrr`"):
        spec_of_fields(None, {"params": {"lrr": 2}}, project=project, report=lambda _: None)


def test_a_field_that_has_no_type_yet_reaches_the_reader() -> None:
    with pytest.raises(SpecError, match="zzz: unknown field"):
        spec(zzz=1)


def test_the_types_of_arguments_are_the_known_fields() -> None:
    from outlast.api.fields import MachineFields, RunFields

    assert set(RunFields.__annotations__) == set(FIELDS)
    assert set(MachineFields.__annotations__) == {*MACHINE_FIELDS, "image"}


def test_nodes_are_an_argument() -> None:
    assert spec(nodes=4).machine.nodes == 4
    with pytest.raises(SpecError, match="nodes: "):
        spec(nodes=0)


def test_none_leaves_a_field_out() -> None:
    assert table_of({"gpu": None, "params": None, "machine": {"cpus": None}}) == ({"machine": {}}, [])
    assert plain((1, Path("x"), {"a": None})) == [1, "x", {}]


def test_metrics_are_columns_of_equal_length() -> None:
    series = {
        "loss": (Point(1, 0.5, 10.0, 1), Point(2, 0.25, 11.0, 1)),
        "step": (Point(2, 7.0, 12.0, 1),),
    }
    found = columns(Curves(series, ()))
    assert {name: found[name] for name in ("step", "at", "attempt", "loss")} == {
        "step": [1, 2],
        "at": [10.0, 12.0],
        "attempt": [1, 1],
        "loss": [0.5, 0.25],
    }
    assert math.isnan(found["step_"][0])
    assert found["step_"][1] == 7.0
