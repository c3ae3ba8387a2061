"""The spec parser: it reports all errors at once, each with field, value and expectation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.errors import SpecError
from outlast.spec import quantity
from outlast.spec.command import argv_of, script_of, unused_params
from outlast.spec.parse import parse
from outlast.spec.requirements import Range
from outlast.spec.spec import decode, encode


def problems(table: dict[str, Any]) -> list[str]:
    with pytest.raises(SpecError) as caught:
        parse(table)
    return caught.value.problems


def test_a_complete_file_is_parsed() -> None:
    spec = parse(
        {
            "name": "census",
            "command": "python train.py --iterations {iterations}",
            "params": {"iterations": 20},
            "machine": {"cloud": "local", "cpus": "8+", "memory": "32GB+", "gpu": "T4:1", "disk": "50GB", "spot": True},
            "code": {"path": "."},
            "data": {"data": "gs://bucket/census"},
            "checkpoint": {"path": "checkpoints", "every": "5m"},
            "limits": {"cost_usd": 5, "deadline": "12h", "crashes": 3},
        }
    )
    assert spec.machine.cpus == Range(low=8)
    assert spec.machine.memory_gb == Range(low=32)
    assert (spec.machine.gpu, spec.machine.gpus) == ("T4", 1)
    assert spec.checkpoint.every_s == 300
    assert spec.limits.deadline_s == 43200
    assert decode(encode(spec)) == spec


@pytest.mark.parametrize("value", [["H100", "A100-80GB:2", "24GB+"], "h100, A100-80GB:2,24GB+"])
def test_gpus_may_be_alternatives_in_an_order(value: object) -> None:
    spec = parse({"command": "true", "machine": {"cloud": "gcp", "gpu": value}})
    machine = spec.machine
    assert [str(one) for one in machine.gpu_choices] == ["H100:1", "A100-80GB:2", "24GB+:1"]
    assert [one.gpu for one in machine.needs(spot=True).by_gpu()] == ["H100", "A100-80GB", "24GB+"]
    assert machine.cpus == Range(low=4), "the default of the alternative with the fewest GPUs"
    offered = (("H100", 1), ("A100-80GB", 2), ("A100-80GB", 1), ("T4", 1))
    assert [machine.gpu_place(*one) for one in offered] == [0, 1, 2, 3]
    assert decode(encode(spec)) == spec


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "expected at least one GPU"),
        (["T4", "t4:1"], "expected each alternative once"),
        (["T4", 3], "invalid GPU 3"),
        (["H100", "A100:0"], "invalid GPU 'A100:0'"),
        ("H100,", "invalid GPU ''"),
        (3, "invalid GPU 3"),
    ],
)
def test_wrong_gpus_are_named(value: object, reason: str) -> None:
    [problem] = problems({"command": "true", "machine": {"gpu": value}})
    assert problem.startswith("[machine] gpu: ")
    assert reason in problem


RESERVED = {"cloud": "gcp", "spot": False, "type": "a3-highgpu-8g", "zones": ["us-central1-a"], "reservation": "week"}


def test_a_reservation_has_one_type_on_demand_in_one_zone() -> None:
    assert parse({"command": "true", "machine": RESERVED}).machine.reservation == "week"
    for wrong, reason in (
        ({"spot": True}, "set `spot = false`"),
        ({"zones": ["us-central1-a", "*"]}, "one zone in `zones`"),
        ({"zones": []}, "one zone in `zones`"),
        ({"type": "local-4", "cloud": "local"}, "of one public cloud"),
        ({"reservation": "My reservation"}, "invalid reservation 'My reservation'"),
    ):
        [problem] = problems({"command": "true", "machine": {**RESERVED, **wrong}})
        assert problem.startswith("[machine] reservation: ")
        assert reason in problem


def test_all_errors_are_reported_at_once() -> None:
    found = problems(
        {
            "nmae": "x",
            "machine": {"disk": "-5GB", "cpus": "many", "cloud": "azure", "spot": "yes"},
            "checkpoint": {"every": "5 parsecs"},
            "limits": {"crashes": 0, "cost_usd": -1},
            "params": {"a": [1]},
            "env": {"OUTLAST_RUN": "x", "1BAD": "y"},
            "secrets": {"TOKEN": "hunter2!"},
            "data": {"../up": "x"},
            "code": {"git": "https://me:hunter2@host/repo", "path": "."},
        }
    )
    text = "\n".join(found)
    for field in (
        "nmae: unknown field; did you mean `name`",
        "command: missing",
        "[machine] disk",
        "[machine] cpus",
        "[machine] cloud",
        "[machine] spot: expected true or false",
        "[checkpoint] path: missing",
        "[checkpoint] every",
        "[limits] crashes",
        "[limits] cost_usd",
        "[params] a",
        "[env] OUTLAST_RUN",
        "[env] 1BAD",
        "[secrets] TOKEN",
        "[data] ../up",
        "[code] git: must not contain a password",
        "[code] git: cannot be combined with `path`",
    ):
        assert field in text, field
    assert "hunter2" not in text  # messages never contain a misplaced secret


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"command": ""}, "must not be empty"),
        ({"command": []}, "must not be empty"),
        ({"command": 7}, "expected text"),
        ({"command": "x", "name": "Has Space"}, "lower-case"),
        ({"command": "x", "machine": 3}, "expected a table"),
        ({"command": "x {lr}", "params": {"rl": 1}}, "uses {lr}, but [params] has no `lr`"),
        ({"command": "x", "checkpoint": {"path": "/abs"}}, "inside the code folder"),
        ({"command": "x", "checkpoint": {"path": "c", "keep_best": "loss"}}, 'expected "min:METRIC" or "max:METRIC"'),
        ({"command": "x", "checkpoint": {"path": "c", "keep_best": "least:loss"}}, "[checkpoint] keep_best: expected"),
        ({"command": "x", "checkpoint": {"path": "c", "keep_best": "min: "}}, 'such as "min:loss", got'),
        ({"command": "x", "checkpoint": {"path": "c", "keep_best_count": 2}}, "requires a metric"),
        ({"command": "x", "checkpoint": {"path": []}}, "[checkpoint] path: must not be empty"),
        ({"command": "x", "checkpoint": {"path": ["a.pt", 7]}}, "[checkpoint] path: expected text, got 7"),
        (
            {"command": "x", "checkpoint": {"path": ["a.pt", "../b.pt"]}},
            "expected a path inside the code folder, without `..`, got '../b.pt'",
        ),
        ({"command": "x", "checkpoint": {"path": ["."]}}, 'for all of it write path = "."'),
        ({"command": "x", "checkpoint": {"path": "*"}}, 'for all of it write path = "."'),
        ({"command": "x", "checkpoint": {"path": "out/**/*.pt"}}, "`**` is not supported"),
        ({"command": "x", "checkpoint": {"path": "out-*/"}}, "expected a folder without a pattern, got 'out-*'"),
        ({"command": "x", "code": {"ref": "main"}}, "requires `git`"),
        ({"command": "x", "machine": {"gpu": "T4:none"}}, "invalid GPU 'T4:none'"),
        ({"command": "x", "machine": {"cpus": "16..4"}}, "its end is below its start"),
    ],
)
def test_messages_name_the_value_and_the_expectation(table: dict[str, Any], message: str) -> None:
    assert message in "\n".join(problems(table))


def test_parameters_are_quoted_in_the_command() -> None:
    params = {"lr": 0.1, "name": "it's; rm -rf /", "flag": True}
    assert argv_of("train --lr {lr} --name {name} --flag {flag}", params)[2] == (
        "train --lr 0.1 --name 'it'\"'\"'s; rm -rf /' --flag true"
    )
    assert argv_of(("train", "--lr={lr}", "{name}"), params) == ["train", "--lr=0.1", "it's; rm -rf /"]
    assert argv_of("awk '{{print}}' ${HOME}", {"print": 1})[2] == "awk '{print}' ${HOME}"
    assert argv_of("awk '{print}'", {})[2] == "awk '{print}'"


@pytest.mark.parametrize("path", ["model.pt/", "checkpoints", "v1.2", "runs/exp.1", ".", "out/*"])
def test_a_checkpoint_path_without_a_file_extension_is_a_folder(path: str) -> None:
    found = parse({"command": "x", "checkpoint": {"path": path}}).checkpoint
    assert (found.path, found.names) == (path.rstrip("/*"), ())


@pytest.mark.parametrize("path", [["vol", "x.pt"], ["v*", "x.pt"], "vol/data/x.pt", ".", "vol"])
def test_no_volume_is_mounted_where_checkpoints_are_restored(path: str | list[str]) -> None:
    found = problems({"command": "x", "checkpoint": {"path": path}, "volumes": {"vol/data": "shared"}})
    assert "`vol/data` is also used by [data], [checkpoint] or [outputs]" in "\n".join(found)


def test_a_volume_outside_the_checkpoint_paths_is_allowed() -> None:
    for path in (["model.pt", "ckpt"], "out/x.pt", "checkpoints", "vol"):
        table = {"command": "x", "checkpoint": {"path": path}, "volumes": {"/mnt/data": "a", "volumes/b": "b"}}
        assert set(parse(table).volumes) == {"/mnt/data", "volumes/b"}


@pytest.mark.parametrize(
    ("path", "folder", "names"),
    [
        ("checkpoint.pth.tar", ".", ("checkpoint.pth.tar",)),
        ("./state.json", ".", ("state.json",)),
        ("training_1/cp.ckpt", "training_1", ("cp.ckpt",)),
        ("*.pth", ".", ("*.pth",)),
        ("out/*.*", "out", ("*.*",)),
        ("logs/version_*/last.ckpt", "logs", ("version_*/last.ckpt",)),
        (["checkpoint.pth.tar", "model_best.pth.tar"], ".", ("checkpoint.pth.tar", "model_best.pth.tar")),
        (["latest"], ".", ("latest",)),
        (["out/a/x.pt", "out/a/y.pt"], "out/a", ("x.pt", "y.pt")),
        (["out/a/x.pt", "out/b.pt", "out/b.pt"], "out", ("a/x.pt", "b.pt")),
        (["ckpt/", "best.pt"], ".", ("ckpt", "best.pt")),
        (["a/x.pt", "ab/y.pt"], ".", ("a/x.pt", "ab/y.pt")),
    ],
)
def test_a_checkpoint_path_may_name_files(path: str | list[str], folder: str, names: tuple[str, ...]) -> None:
    found = parse({"command": "x", "checkpoint": {"path": path}}).checkpoint
    assert (found.path, found.names) == (folder, names)
    if isinstance(path, str):
        assert found.shown == path.removeprefix("./")


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python train.py --x 1", "train.py"),
        ("python3.12 -u src/train.py", "src/train.py"),
        (("bash", "run.sh"), "run.sh"),
        ("./go --now", "./go"),
        ("python -m package", ""),
        ("cd x && python y.py", ""),
        ("python -c 'print(1)'", ""),
        ("echo 'unbalanced", ""),
    ],
)
def test_the_script_of_a_simple_command_is_found(command: str | tuple[str, ...], script: str) -> None:
    assert script_of(command) == script


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", None), (90, 90), ("90s", 90), ("1h30m", 5400), ("2 d", 172800), ("0s", None)]
)
def test_durations(text: object, seconds: float | None) -> None:
    if seconds is None:
        with pytest.raises(ValueError):
            quantity.duration_s(text)
    else:
        assert quantity.duration_s(text) == seconds


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(
    ["name", "command", "setup", "params", "env", "secrets", "machine", "code", "data", "checkpoint", "outputs",
     "limits", "workspace", "cpus", "memory", "gpu", "disk", "spot", "zones", "path", "git", "ref", "every", "keep",
     "cost_usd", "deadline", "crashes", "hang_after"]
)  # fmt: skip
tables = st.dictionaries(names | st.text(), values | st.dictionaries(names | st.text(), values, max_size=4), max_size=6)


@pytest.mark.full
@settings(max_examples=400, deadline=None)
@given(tables)
def test_any_table_results_in_a_spec_or_a_spec_error(table: dict[str, Any]) -> None:
    try:
        spec = parse(table)
    except SpecError:
        return
    assert decode(encode(spec)) == spec


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("stesp", "steps"),
        ("Steps", "steps"),
        ("colour", ""),
        ("steps", None),
        ("lr", None),
        # Read by the program.
        ("depth", None),
        ("min-leaf", None),
        ("dep", ""),
    ],
)
def test_a_parameter_that_nothing_uses_is_noticed(name: str, near: str | None) -> None:
    script = 'depth = os.environ["OUTLAST_PARAM_DEPTH"]; leaf = args.min_leaf'
    found = unused_params([name], declared=["lr"], commands=["python a.py {steps} {{x}}"], scripts=[script])
    assert found == ({} if near is None else {name: near})
