"""`outlast init --from` converts SkyPilot and Ray cluster files, and reports every field that it drops."""

from __future__ import annotations

import os
import subprocess
import tomllib
from typing import Any

import pytest

from outlast.spec.parse import parse
from outlast.spec.spec import Spec
from outlast.spec.tasks import parse_tasks
from outlast.spec.toml import written
from tests.integration.cli.console import Console


def ask(console: Console, text: str, *more: str) -> subprocess.CompletedProcess[str]:
    (console.folder / "task.yaml").write_text(text)
    return console.run("init", "--from", "task.yaml", *more)


def table(console: Console, text: str) -> dict[str, Any]:
    answer = ask(console, text)
    assert answer.returncode == 0, answer.stderr
    return tomllib.loads((console.folder / "outlast.toml").read_text())


def spec(console: Console, text: str) -> Spec:
    return parse(table(console, text))


def refusal(console: Console, text: str) -> str:
    answer = ask(console, text)
    assert answer.returncode == 2
    assert "hint: " in answer.stderr
    assert not (console.folder / "outlast.toml").exists()
    return answer.stderr


PLAIN = """
name: Fine Tune
workdir: .
resources:
  infra: gcp/us-central1
  accelerators: A100:8
  cpus: 16+
  memory: 64+
  use_spot: true
  disk_size: 512
envs:
  MODEL: llama
  EPOCHS: 3
secrets:
  HF_TOKEN: null
setup: |
  pip install -r requirements.txt
run: |
  python train.py --model "$MODEL" \\
    --gpus $SKYPILOT_NUM_GPUS_PER_NODE
"""


def test_a_task_becomes_a_run(console: Console) -> None:
    found = spec(console, PLAIN)
    assert found.name == "fine-tune"
    machine = found.machine
    assert (machine.clouds, machine.zones, machine.spot, machine.disk_gb) == (("gcp",), ("us-central1",), True, 512)
    assert (machine.gpu, machine.gpus, machine.cpus.low, machine.memory_gb.low) == ("A100", 8, 16, 64)
    assert found.env == {"MODEL": "llama", "EPOCHS": "3", "SKYPILOT_NUM_GPUS_PER_NODE": "8"}
    assert found.secrets == {"HF_TOKEN": "HF_TOKEN"}
    assert isinstance(found.command, str)
    assert found.command.startswith('python train.py --model "$MODEL" \\\n')


def test_machines_are_on_demand_unless_the_task_requests_spot(console: Console) -> None:
    assert spec(console, "resources: {infra: aws}\nrun: 'true'").machine.spot is False


def test_alternatives_of_spot_and_on_demand_become_a_fallback(console: Console) -> None:
    text = "resources: {infra: aws, any_of: [{use_spot: true}, {use_spot: false}]}\nrun: 'true'"
    machine = spec(console, text).machine
    assert (machine.spot, machine.fallback) == (True, True)


def test_alternative_clouds_become_an_order_and_unknown_ones_are_named(console: Console) -> None:
    text = """
resources:
  cpus: 4+
  any_of: [{infra: aws/us-east-1}, {infra: azure}, {infra: gcp}]
run: 'true'
"""
    answer = ask(console, text)
    assert "`azure` is not supported" in answer.stderr
    machine = parse(tomllib.loads((console.folder / "outlast.toml").read_text())).machine
    assert machine.clouds == ("aws", "gcp")
    assert machine.zones == ("us-east-1", "*")


def test_files_are_copied_to_the_paths_that_the_task_uses(console: Console) -> None:
    (console.folder / "answers").mkdir()
    (console.folder / "answers" / "one.txt").write_text("forty-two\n")
    text = """
workdir: .
envs: {WHERE: answers}
file_mounts:
  ~/my answers: ./$WHERE
  near: answers
run: |
  cat ~/'my answers'/one.txt near/one.txt
"""
    assert ask(console, text).returncode == 0
    answer = console.run("run", "--cloud", "local", "--quiet", "--no-pull")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "forty-two\nforty-two\n"


def test_a_pipeline_becomes_tasks_one_after_the_other(console: Console) -> None:
    text = "name: two\n---\nname: prepare\nrun: echo 1\n---\nname: train\nrun: echo 2\n"
    tasks = parse_tasks(table(console, text))
    assert [task.name for task in tasks] == ["prepare", "train"]
    assert tasks[0].spec.member is not None
    assert tasks[0].spec.member.ready == "done"
    assert tasks[1].spec.member is not None
    assert tasks[1].spec.member.after == ("prepare",)


def test_tasks_side_by_side_are_released_with_the_primary_one(console: Console) -> None:
    header = "name: both\nexecution: parallel\nprimary_tasks: [learner]\n"
    text = f"{header}---\nname: learner\nrun: echo 1\n---\nname: actor\nrun: echo 2\n"
    tasks = {task.name: task for task in parse_tasks(table(console, text))}
    assert tasks["actor"].spec.member is not None
    assert tasks["actor"].spec.member.until == ("learner",)
    assert tasks["actor"].spec.member.after == ()


def test_independent_nodes_become_a_count(console: Console) -> None:
    tasks = parse_tasks(table(console, "num_nodes: 3\nrun: python sample.py\n"))
    assert [(task.name, task.least) for task in tasks] == [("node", 3)]


def test_nodes_that_address_each_other_become_a_distributed_run(console: Console) -> None:
    run = "python -m torch.distributed.run --nnodes=$SKYPILOT_NUM_NODES --node_rank=$SKYPILOT_NODE_RANK train.py"
    found = spec(console, f"num_nodes: 4\nresources: {{infra: gcp, accelerators: 'A100:8'}}\nrun: {run}\n")
    assert (found.machine.nodes, found.machine.gpus) == (4, 8)
    values = {"OUTLAST_NODES": "4", "OUTLAST_NODE_RANK": "2", "PATH": os.environ["PATH"]}
    shown = str(found.command).replace("python -m", "echo -m")
    done = subprocess.run(["bash", "-c", shown], env=values, capture_output=True, text=True, check=True)
    assert done.stdout == "-m torch.distributed.run --nnodes=4 --node_rank=2 train.py\n"


def test_a_setup_finds_the_variables_of_its_node(console: Console) -> None:
    text = "num_nodes: 2\nsetup: echo $SKYPILOT_SETUP_NODE_RANK\nrun: torchrun train.py\n"
    found = spec(console, text)
    assert found.setup == 'export SKYPILOT_SETUP_NODE_RANK="$OUTLAST_NODE_RANK"\necho $SKYPILOT_SETUP_NODE_RANK'
    assert found.command == "torchrun train.py"


# A command line of torchrun → the command and the nodes.
TORCHRUN: dict[str, tuple[str, dict[str, Any]]] = {
    "torchrun --nnodes=4 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=$HEAD:29500 train.py --lr 0.1": (
        "torchrun --nproc-per-node=8 train.py --lr 0.1",
        {"nodes": 4},
    ),
    "torchrun --nnodes 2:4 --max-restarts 3 --rdzv_id 7 train.py": (
        "torchrun --max-restarts 3 train.py",
        {"nodes": "2..4"},
    ),
    "python -m torch.distributed.run --nnodes 2 --node_rank 0 --master_addr 10.0.0.1 -m pkg.train --nnodes 9": (
        "python -m torch.distributed.run -m pkg.train --nnodes 9",
        {"nodes": 2},
    ),
    "torchrun --standalone --nproc-per-node 2 train.py": ("torchrun --nproc-per-node 2 train.py", {}),
}


@pytest.mark.parametrize("line", TORCHRUN)
def test_a_command_line_of_torchrun_is_converted(console: Console, line: str) -> None:
    (console.folder / "train.py").touch()
    answer = console.run("init", "--from", line)
    assert answer.returncode == 0, answer.stderr
    table = tomllib.loads((console.folder / "outlast.toml").read_text())
    assert (table["command"], table.get("machine", {})) == TORCHRUN[line]


@pytest.mark.parametrize(
    "line", ["torchrun --nnodes $N train.py", "torchrun --nnodes 0 train.py", "torchrun --nnodes 2"]
)
def test_a_command_line_of_torchrun_that_cannot_be_converted_is_refused(console: Console, line: str) -> None:
    answer = console.run("init", "--from", line)
    assert answer.returncode == 2
    assert "hint: " in answer.stderr
    assert not (console.folder / "outlast.toml").exists()


def test_volumes_restarts_and_git_are_converted(console: Console) -> None:
    text = """
workdir: {url: https://example.com/a.git, ref: v2}
resources: {infra: gcp, job_recovery: {strategy: FAILOVER, max_restarts_on_errors: 4}, image_id: my-image}
volumes: {/mnt/data: demos}
run: 'true'
"""
    found = spec(console, text)
    assert (found.code.git, found.code.ref) == ("https://example.com/a.git", "v2")
    assert found.limits.crashes == 5
    assert found.machine.image == "my-image"
    assert found.volumes == {"/mnt/data": "demos"}


def test_a_container_image_is_converted(console: Console) -> None:
    text = "resources: {infra: gcp, image_id: 'docker:python:3.12'}\nrun: 'true'"
    assert spec(console, text).machine.container == "python:3.12"


@pytest.mark.parametrize("accelerators", ["[A100:8, T4]", "{A100: 8, T4: 1}", "'{A100:8, T4}'", "[A100:8, T4, 'T4:1']"])
def test_several_accelerators_are_alternatives_in_their_order(console: Console, accelerators: str) -> None:
    found = spec(console, f"resources: {{infra: gcp, accelerators: {accelerators}}}\nrun: 'true'\n").machine
    assert [str(one) for one in found.gpu_choices] == ["A100:8", "T4:1"]


# Field → a value. These fields have no counterpart.
WITHOUT_COUNTERPART = {
    "resources.disk_tier": "resources: {infra: aws, disk_tier: high}",
    "resources.network_tier": "resources: {infra: aws, network_tier: best}",
    "resources.ports": "resources: {infra: aws, ports: [8080]}",
    "resources.labels": "resources: {infra: aws, labels: {a: b}}",
    "resources.max_hourly_cost": "resources: {infra: aws, max_hourly_cost: 3.0}",
    "resources.accelerators": "resources: {infra: aws, accelerators: [A100, tpu-v5e-8]}",
    "resources.image_id": "resources: {infra: aws, image_id: {us-east-1: ami-1}}",
    "resources.job_recovery.recover_on_exit_codes": "resources: {infra: aws, job_recovery: {recover_on_exit_codes: 3}}",
    "resources.priority": "resources: {infra: aws, priority: 100}",
    "resources.nonsense": "resources: {infra: aws, nonsense: 1}",
    "nonsense": "nonsense: {a: [1, 2]}",
    "event_callback": "event_callback: ./tell.sh",
    "config": "config: {kubernetes: {}}\nexperimental: {}",
    "file_mounts./out": "file_mounts: {/out: {name: my-bucket, mode: MOUNT}}",
    "file_mounts./r2": "file_mounts: {/r2: 'r2://bucket'}",
    "file_mounts./v": "file_mounts: {/v: $NOWHERE}",
    "file_mounts.~/.ssh/id": "file_mounts: {~/.ssh/id: ~/.ssh/id_ed25519, ~/.ssh/id.pub: ~/.ssh/id_ed25519.pub}",
    "file_mounts./far": "envs: {FROM: 'r2://lake'}\nfile_mounts: {/far: {source: $FROM, mode: MOUNT}}",
    "resources.candidates[1].accelerators": "resources: {candidates: [{accelerators: T4:4}, {accelerators: V100:4}]}",
    "volumes./scratch": "volumes: {/scratch: {size: 10Gi}}",
}


@pytest.mark.parametrize("field", WITHOUT_COUNTERPART)
def test_fields_without_a_counterpart_are_named_on_stderr_and_in_the_file(console: Console, field: str) -> None:
    answer = ask(console, f"{WITHOUT_COUNTERPART[field]}\nrun: 'true'\n")
    assert answer.returncode == 0, answer.stderr
    assert f"changed: {field}: " not in answer.stderr, "a field is either left out or changed"
    assert f"left out: {field}: " in answer.stderr
    text = (console.folder / "outlast.toml").read_text()
    assert f"# - {field}: " in text.partition("# Left out:")[2]
    parse(tomllib.loads(text))


# Text that makes a conversion impossible → the field in the error.
REFUSED = {
    "service: {replicas: 2}\nrun: 'true'": "service",
    "pool: {workers: 2}\nrun: 'true'": "pool",
    "resources: {infra: kubernetes}\nrun: 'true'": "kubernetes",
    "resources: {any_of: [{infra: azure}, {infra: k8s/here}]}\nrun: 'true'": "resources.any_of",
    "resources: {accelerators: tpu-v5e-8}\nrun: 'true'": "TPU",
    "resources: {cpus: many}\nrun: 'true'": "resources.cpus",
    "resources: {memory: [1]}\nrun: 'true'": "resources.memory",
    "resources: [a]\nrun: 'true'": "resources",
    "num_nodes: 300\nrun: torchrun --node_rank=$SKYPILOT_NODE_RANK": "between 1 and 256",
    "num_nodes: -1\nrun: 'true'": "num_nodes",
    "setup: echo": "run: missing",
    "envs: {A: [1]}\nrun: 'true'": "envs.A",
    "name: [1]\nrun: 'true'": "name",
    "colour: blue": "neither a SkyPilot YAML",
    "a: [b": "invalid YAML",
    "": "neither",
    "run: &a [*a]": "100000",
    "a: &a [1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
    "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nrun: [*e,*e,*e]": "100000",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: REFUSED[text])
def test_fields_that_would_change_their_meaning_are_refused(console: Console, text: str) -> None:
    assert REFUSED[text] in refusal(console, text)


def test_variables_without_a_value_become_secrets(console: Console) -> None:
    answer = ask(console, "envs: {TOKEN: <your token>, SIDE: a<b}\nsecrets: {KEY: ''}\nrun: 'true'\n")
    found = parse(tomllib.loads((console.folder / "outlast.toml").read_text()))
    assert found.secrets == {"TOKEN": "TOKEN", "KEY": "KEY"}
    assert found.env == {"SIDE": "a<b"}
    assert "`KEY=` suffices" in answer.stderr


def test_a_single_job_gets_the_whole_share(console: Console) -> None:
    answer = ask(console, "run: python ocr.py $((1000 / SKYPILOT_NUM_JOBS)) $SKYPILOT_JOB_RANK\n")
    found = parse(tomllib.loads((console.folder / "outlast.toml").read_text()))
    assert found.env == {"SKYPILOT_JOB_RANK": "0", "SKYPILOT_NUM_JOBS": "1"}
    assert "changed: run: SKYPILOT_JOB_RANK, SKYPILOT_NUM_JOBS: " in answer.stderr


def test_an_unsupported_job_group_is_refused_with_every_reason(console: Console) -> None:
    header = "name: elastic\nexecution: parallel\nprimary_tasks: [boss]\n---\nname: boss\nresources: {infra: k8s}\n"
    said = refusal(
        console, f"---\n{header}run: a\n---\nname: hands\nresources: {{infra: k8s}}\nnum_nodes: 1500\nrun: b\n"
    )
    for reason in ("3 problems", "task 1.resources.infra", "task 2.resources.infra", "task 2.num_nodes"):
        assert reason in said


# Command, file, and error.
UNREADABLE = [
    ("init --from", "folder", "is a folder"),
    ("submit --file", "folder", "is a folder"),
    ("ui --password-file", "binary", "is not text"),
    ("machine create a --startup", "nowhere", "does not exist"),
]


@pytest.mark.parametrize(("argv", "name", "why"), UNREADABLE)
def test_an_unreadable_file_is_a_clear_error(console: Console, argv: str, name: str, why: str) -> None:
    (console.folder / "folder").mkdir()
    (console.folder / "binary").write_bytes(b"\x80\x81\x00")
    answer = console.run(*argv.split(), name)
    assert answer.returncode == 2
    assert why in answer.stderr
    assert "Errno" not in answer.stderr
    assert "hint: " in answer.stderr


def test_a_secret_in_the_file_is_not_copied(console: Console) -> None:
    answer = ask(console, "secrets: {TOKEN: hunter2hunter2}\nrun: 'true'\n")
    text = (console.folder / "outlast.toml").read_text()
    assert "hunter2" not in text + answer.stdout + answer.stderr
    assert parse(tomllib.loads(text)).secrets == {"TOKEN": "TOKEN"}


def test_foreign_names_cannot_move_the_cursor(console: Console) -> None:
    answer = ask(console, 'run: "true"\n"\\e[2Jgone": 1\n')
    assert answer.returncode == 0
    assert "\x1b" not in answer.stderr
    assert "\x1b" not in (console.folder / "outlast.toml").read_text()


def test_an_existing_file_is_not_overwritten(console: Console) -> None:
    (console.folder / "outlast.toml").write_text("mine")
    assert ask(console, PLAIN).returncode == 2
    assert (console.folder / "outlast.toml").read_text() == "mine"
    assert ask(console, PLAIN, "--force").returncode == 0


def test_paths_are_relative_to_the_new_file(console: Console) -> None:
    (console.folder / "new").mkdir()
    (console.folder / "task.yaml").write_text("workdir: src\nfile_mounts: {data: ./data}\nrun: 'true'\n")
    console.well("init", "new", "--from", "task.yaml")
    found = tomllib.loads((console.folder / "new" / "outlast.toml").read_text())
    assert found["code"]["path"] == "../src"
    assert found["data"]["data"] == "../data"


@pytest.mark.parametrize("text", ["it's\n", 'a\\b\n"c"\n', "'''\n", "\x1b\n\x7f", "ü\t\n", "ends with '\n'"])
def test_text_survives_writing_and_reading(text: str) -> None:
    assert tomllib.loads(written({"a b": text, "t": {"u": {"x": [text, 1]}}})) == {
        "a b": text,
        "t": {"u": {"x": [text, 1]}},
    }
