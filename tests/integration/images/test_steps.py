"""Steps run by real bash: the failed line is reported for every way to fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.clouds.cloud import Image
from outlast.images import relocate, steps
from outlast.images.recipe import read_recipe
from outlast.images.steps import Step, explain, failure_of
from outlast.spec.image import parse_image


def run(tmp_path: Path, script: str) -> tuple[int, list[str], tuple[int, int] | None]:
    (tmp_path / "wrapper.sh").write_text(steps._read("wrapper.sh"))
    (tmp_path / "script.sh").write_text(script)
    answer = subprocess.run(
        ["bash", "--noprofile", "--norc", str(tmp_path / "wrapper.sh"), str(tmp_path / "script.sh")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    lines = answer.stdout.splitlines()
    failed = [failure for line in lines if (failure := failure_of(line))]
    return answer.returncode, [line for line in lines if failure_of(line) is None], failed[-1] if failed else None


@pytest.mark.parametrize(
    ("script", "line", "code"),
    [
        ("# comment\n\necho 3\necho 4\necho 5\necho 6\nls /nowhere\necho 8\n", 7, 2),
        ("echo 1\nif true; then\n  exit 5\nfi\n", 3, 5),
        ("f() {\n  echo in f\n  false\n}\n\nf\n", 3, 1),
        ("echo hello |\n  grep nothing\n", 2, 1),
        ("for i in 1 2; do\n  echo $i\n  test $i = 1\ndone\n", 3, 1),
        ("echo 1\nx=$(exit 4)\n", 2, 4),
        ("cat <<END\ntext\nEND\nbash -c 'exit 9'\n", 4, 9),
    ],
)
def test_the_failed_line_is_reported(tmp_path: Path, script: str, line: int, code: int) -> None:
    assert run(tmp_path, script)[::2] == (code, (line, code))


def test_an_error_of_bash_itself_is_reported_with_its_line(tmp_path: Path) -> None:
    script = "set -u\n\necho $nothing\n"
    code, output, failed = run(tmp_path, script)
    assert failed is not None
    step = Step(name="script", title="setup.sh", script=script, own=True)
    assert "setup.sh, line 3: `echo $nothing` exited with 1" in explain(step, *failed, output)
    assert code == 1


def test_commands_that_may_fail_do_not_count(tmp_path: Path) -> None:
    code, output, failed = run(
        tmp_path, "false || echo fine\n[ 1 = 2 ] && echo no\nif false; then echo no; fi\necho end\n"
    )
    assert (code, failed) == (0, None)
    assert output == ["fine", "end"]


def test_the_script_sees_no_arguments_of_the_wrapper(tmp_path: Path) -> None:
    assert run(tmp_path, 'echo "$# words"\n')[1] == ["0 words"]


def test_a_failure_shows_the_line_and_the_last_output() -> None:
    step = Step(name="script", title="setup.sh", script="a\nb\nmake all\n", own=True)
    text = explain(step, 3, 2, ["compiling", "no rule to make target"])
    assert text.splitlines()[0] == "setup.sh, line 3: `make all` exited with 2; the last output:"
    assert text.splitlines()[-1].strip() == "no rule to make target"


def test_the_steps_come_in_order(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("numpy==1 --hash=sha256:00")
    spec = parse_image(
        {
            "name": "env",
            "packages": ["git"],
            "pip": ["it's"],
            "lock": "lock",
            "script": "true",
            "warm": ["w"],
            "test": ["t1", "t2"],
        },
        source="recipe.toml",
    )
    recipe = read_recipe(spec, folder=str(tmp_path), base=Image(name="base", cloud="local"), source="recipe.toml")
    found = steps.steps(recipe, shares_software=False)
    assert [step.name for step in found] == ["packages", "pip", "script", "warm-1", "test-1", "test-2"]
    pip = found[1].script
    assert "--require-hashes" in pip
    assert pip.index("lock.txt") < pip.index("it'\"'\"'s")
    assert "/opt/outlast/env" in pip
    assert "$HOME/.outlast/env" in steps.steps(recipe, shares_software=True)[1].script
    assert set(steps.texts(recipe, found)) >= {"lock.txt", "wrapper.sh", "script.sh", "test-2.sh"}


@pytest.mark.parametrize(
    "form", ["#!{python}\n", "#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''\n"], ids=["short", "long"]
)
def test_programs_of_the_environment_find_their_python_after_it_has_moved(tmp_path: Path, form: str) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    (old / "bin").mkdir(parents=True)
    (old / "bin/python").symlink_to(sys.executable)
    (old / "bin/tool").write_text(form.format(python=f"{old}/bin/python") + "print('moved')\n")
    (old / "bin/other").write_text("#!/bin/sh\necho as it was\n")
    for name in ("tool", "other"):
        (old / "bin" / name).chmod(0o755)
    # Twice: an image may be the base of another.
    for _ in range(2):
        subprocess.run([sys.executable, relocate.__file__, str(old / "bin")], check=True)
    os.rename(old, new)
    for name, output in (("tool", "moved\n"), ("other", "as it was\n")):
        answer = subprocess.run([new / "bin" / name], capture_output=True, text=True, check=True)
        assert answer.stdout == output
