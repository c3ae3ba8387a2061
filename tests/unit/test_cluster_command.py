"""Arguments of `outlast cluster submit`, `matrix` and `exec`: options before and after the name, Ray's habits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from outlast.cli.cluster.connect import exec_command, with_interpreter
from outlast.cli.cluster.find import cluster_options
from outlast.cli.cluster.jobs import matrix, submit
from outlast.errors import UsageError

Values = dict[str, Any]


def parsed(command: click.Command, line: str) -> Values:
    """Return the arguments that differ from their defaults."""
    context = command.make_context(command.name or "", line.split())
    defaults = {option.name: option.get_default(context) for option in command.params}
    return {name: value for name, value in context.params.items() if value and value != defaults[name]}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("C -- bash -c x", {"name": "C", "command": ("bash", "-c", "x")}),
        ("C bash -c x", {"name": "C", "command": ("bash", "-c", "x")}),
        ("C --wait --env A=1 -- bash", {"name": "C", "command": ("bash",), "wait": True, "variables": ("A=1",)}),
        ("--wait C --env=A=1 -- bash", {"name": "C", "command": ("bash",), "wait": True, "variables": ("A=1",)}),
        (
            "--job tune C -w here bash --wait",
            {"job_name": "tune", "workspace_url": "here", "command": ("bash", "--wait")},
        ),
        ("C -- bash -- x", {"name": "C", "command": ("bash", "--", "x")}),
        ("C bash -- x", {"name": "C", "command": ("bash", "--", "x")}),
        # As `ray submit --tmux FILE SCRIPT -- ARGUMENTS`.
        ("--tmux c.yaml ./job.py -- a=1 --b", {"name": "c.yaml", "command": ("./job.py", "a=1", "--b")}),
        ("-y c.yaml job.py --wait", {"name": "c.yaml", "command": ("job.py", "--wait")}),
    ],
)
def test_options_stand_before_and_after_the_name(line: str, expected: Values) -> None:
    assert parsed(submit, line) == {"name": "C", **expected}


def test_matrix_and_exec_take_options_after_the_name_as_well() -> None:
    assert parsed(matrix, "C --axis a=1,2 --axis b=3 -- bash {a}") == {
        "name": "C",
        "axes": ("a=1,2", "b=3"),
        "command": ("bash", "{a}"),
    }
    assert parsed(exec_command, "C -w here tail -n 100 -f /tmp/x") == {
        "name": "C",
        "workspace_url": "here",
        "command": ("tail", "-n", "100", "-f", "/tmp/x"),
    }


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("C", "no command given"),
        ("C --", "no command given"),
        ("C --wait", "no command given"),
        ("C --wiat -- bash", "--wiat"),
        ("", "name"),
        ("C --env", "no command given"),
    ],
)
def test_a_wrong_line_is_refused(line: str, why: str) -> None:
    with pytest.raises((click.UsageError, UsageError), match=why):
        parsed(submit, line)


def test_a_habit_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    parsed(submit, "--tmux C job.py")
    assert "`--tmux` is not needed" in capsys.readouterr().err


def test_a_script_is_run_with_python(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("")
    assert with_interpreter(("./job.py", "a"), str(tmp_path)) == ("python", "./job.py", "a")
    assert with_interpreter(("other.py",), str(tmp_path)) == ("other.py",)
    assert with_interpreter(("bash", "job.py"), str(tmp_path)) == ("bash", "job.py")


RAY_FILE = """
cluster_name: gpus
provider: {type: gcp, project_id: acme, region: us-west1, availability_zone: us-west1-b}
docker: {image: "rayproject/ray-ml:latest-gpu", container_name: ray}
available_node_types:
  head:
    resources: {CPU: 2}
    node_config:
      machineType: n1-standard-2
      disks: [{initializeParams: {sourceImage: projects/acme/global/images/with-gpus, diskSizeGb: 20}}]
head_node_type: head
"""


def test_another_image_stands_for_those_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(RAY_FILE)
    pytest.importorskip("yaml")
    (as_written, _), (changed, _) = (
        cluster_options(str(file), ""),
        cluster_options(str(file), "local", image="base", container="none"),
    )
    assert as_written.spec.head.image.endswith("with-gpus")
    assert as_written.spec.head.container is not None
    assert (changed.spec.cloud, changed.spec.head.image, changed.spec.head.container) == ("local", "base", None)
    other, _ = cluster_options(str(file), "", container="oci:ray")
    assert other.spec.head.container is not None
    assert other.spec.head.container.image == "oci:ray"
