"""`@outlast.trainer`: a function as a program, from its flags to a finished job, each in a separate process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from urllib.request import Request, urlopen

import pytest

import outlast
from outlast.errors import UsageError
from outlast.trainer.flags import parameters_of
from tests.conventions.sources import document
from tests.support.waiting import eventually

PROGRAM = '''
from __future__ import annotations
import json, os, sys, time
from typing import Literal
import outlast

@outlast.trainer(free=("data",))
def train(run, *, lr: float = 0.5, depth: int = 3, opt: Literal["adam", "sgd"] = "adam", shuffle: bool = True,
          note: str | None = None, data: str = "here"):
    """Halves an error, 100 % of the time.

    lr: how fast
    """
    state = run.restore() or {"step": 0, "error": 1.0, "seen": []}
    print("begin", json.dumps({**run.params, "step": state["step"], "total": run.train_steps}), flush=True)
    for step in run.steps(state["step"]):
        state = {"step": step + 1, "error": state["error"] * lr, "seen": [*state["seen"], step]}
        run.log(step, error=state["error"])
        run.save_if_due(step, lambda: state)
        if "SLOWLY" in os.environ:
            print("step", step, flush=True)
            time.sleep(0.02)
    return {"error": state["error"]}

@train.evaluate
def score(run, state, *, lr):
    return {"error": state["error"], "steps": len(state["seen"]), "lr": lr, "batches": run.eval_steps or 0}

if __name__ == "__main__":
    train()
'''


class Laptop:
    """A folder with a program in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / "train.py"
        self.script.write_text(PROGRAM)
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}

    def start(self, *argv: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(self.script), *argv],
            cwd=self.folder,
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*argv, **environment)
        output, errors = process.communicate(timeout=600)
        assert "Traceback" not in errors, errors
        return subprocess.CompletedProcess(argv, process.returncode, output, errors)

    def begun(self, *argv: str, **environment: str) -> dict[str, object]:
        """Return the values that the function was called with."""
        done = self.run(*argv, **environment)
        assert done.returncode == 0, done.stderr
        found: dict[str, object] = json.loads(done.stdout.removeprefix("begin "))
        return found

    def metrics(self, *argv: str) -> dict[str, float]:
        done = self.run("--mode", "evaluate", *argv)
        assert done.returncode == 0, done.stderr
        found: dict[str, float] = json.loads(done.stdout)
        return found


@pytest.fixture
def laptop(tmp_path: Path) -> Laptop:
    return Laptop(tmp_path)


def test_parameters_are_flags_with_their_types_and_defaults(laptop: Laptop) -> None:
    begun = laptop.begun("--train-steps", "2")
    assert (begun.pop("step"), begun.pop("total")) == (0, 2)
    assert begun == {"lr": 0.5, "depth": 3, "opt": "adam", "shuffle": True, "note": None, "data": "here"}
    argv = ["--lr", "1e-1", "--depth", "4", "--opt", "sgd", "--no-shuffle", "--note", "x y", "--train-steps=3"]
    begun = laptop.begun(*argv, "--job-dir", "other")
    assert (begun.pop("step"), begun.pop("total")) == (0, 3)
    assert begun == {"lr": 0.1, "depth": 4, "opt": "sgd", "shuffle": False, "note": "x y", "data": "here"}


def test_the_help_has_defaults_choices_and_the_docstring(laptop: Laptop) -> None:
    done = laptop.run("--help")
    assert done.returncode == 0
    text = " ".join(done.stdout.split())
    assert "Halves an error, 100 % of the time." in text
    assert "--lr FLOAT how fast (default: 0.5)" in text
    assert "adam|sgd" in text
    assert "--shuffle, --no-shuffle" in text
    assert "--job-dir" in text


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--lr", "fast"], "--lr: `fast` is not a number"),
        (["--depth", "2.5"], "--depth: `2.5` is not a whole number"),
        (["--opt", "lion"], "--opt: `lion` is not `adam` or `sgd`"),
        (["--train-steps", "0"], "--train-steps: expected a whole number of at least 1, got 0"),
        (["--train-steps", "ten"], "--train-steps: `ten` is not a whole number"),
        (["--checkpoint-steps", "-3"], "--checkpoint-steps"),
        (["--mode", "sing"], "`train` or `evaluate`"),
        (["--momentum", "1"], "unrecognized arguments: --momentum"),
        (["--lr"], "expected one argument"),
        (["--job-dir", "train.py"], "expected a folder, found a file"),
        (["--job-dir", "train.py/below"], "--job-dir train.py/below: Not a directory"),
        (["--job-dir", "ftp://host/job"], "unknown URL scheme `ftp://`"),
    ],
)
def test_invalid_input_is_reported_in_a_line_and_exits_with_2(laptop: Laptop, argv: list[str], message: str) -> None:
    done = laptop.run(*argv)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stdout == ""


def test_hyperparameters_are_inherited_on_resume(laptop: Laptop) -> None:
    laptop.begun("--job-dir", "job", "--lr", "0.25", "--no-shuffle", "--train-steps", "4")
    again = laptop.begun("--job-dir", "job", "--train-steps", "6")
    assert (again["lr"], again["shuffle"], again["step"], again["total"]) == (0.25, False, 4, 6)
    assert laptop.metrics("--job-dir", "job")["error"] == pytest.approx(0.25**6)


def test_a_contradiction_names_the_parameter_both_values_and_the_remedy(laptop: Laptop) -> None:
    laptop.begun("--job-dir", "job", "--lr", "0.25", "--train-steps", "4")
    done = laptop.run("--job-dir", "job", "--lr", "0.1", "--train-steps", "9")
    assert done.returncode == 2
    assert "--lr is 0.25 in job, but 0.1 was given" in done.stderr
    assert "another --job-dir" in done.stderr
    assert laptop.begun("--job-dir", "job", "--lr", "2.5e-1", "--train-steps", "5")["lr"] == 0.25


def test_a_free_parameter_may_differ(laptop: Laptop) -> None:
    laptop.begun("--job-dir", "job", "--data", "/a", "--train-steps", "4")
    assert laptop.begun("--job-dir", "job", "--data", "/b", "--train-steps", "5")["data"] == "/b"
    assert laptop.begun("--job-dir", "job", "--train-steps", "6")["data"] == "here"


@pytest.mark.parametrize("job", [[], ["--job-dir", "job"]], ids=["default", "named"])
def test_a_finished_job_does_nothing_and_reports_it(laptop: Laptop, job: list[str]) -> None:
    laptop.begun(*job, "--train-steps", "4")
    for argv in ([], ["--train-steps", "4"], ["--train-steps", "3"]):
        done = laptop.run(*job, *argv)
        assert done.returncode == 0
        assert done.stdout == ""
        assert "is finished at step 4 (error 0.0625): nothing to do" in done.stderr


def test_evaluate_scores_the_last_state_with_its_hyperparameters(laptop: Laptop) -> None:
    laptop.begun("--job-dir", "job", "--lr", "0.25", "--train-steps", "5", "--checkpoint-steps", "3")
    found = laptop.metrics("--job-dir", "job", "--eval-steps", "7")
    assert found == {"error": 0.25**5, "steps": 5, "lr": 0.25, "batches": 7}


def test_eval_steps_evaluate_at_each_checkpoint_and_at_the_end(laptop: Laptop) -> None:
    argv = ("--job-dir", "job", "--train-steps", "7", "--checkpoint-steps", "3")
    laptop.begun(*argv, "--eval-steps", "5")
    rows = [json.loads(line) for line in (laptop.folder / "job" / "metrics.jsonl").read_text().splitlines()]
    scored = {row["step"]: row for row in rows if "eval_error" in row}
    assert {2, 6} <= scored.keys() <= {2, 5, 6}, "a checkpoint is skipped while the last one is being written"
    assert all(row["eval_error"] == 0.5 ** (step + 1) for step, row in scored.items())
    assert {row["eval_batches"] for row in scored.values()} == {5}
    assert json.loads((laptop.folder / "job" / "done.json").read_text())["metrics"]["eval_error"] == 0.5**7


def test_without_eval_steps_nothing_is_evaluated_while_training(laptop: Laptop) -> None:
    laptop.begun("--job-dir", "job", "--train-steps", "7", "--checkpoint-steps", "3")
    assert "eval_" not in (laptop.folder / "job" / "metrics.jsonl").read_text()


def test_an_evaluation_preserves_the_random_numbers_of_the_training(laptop: Laptop) -> None:
    laptop.script.write_text(
        "import itertools, random, outlast\n@outlast.trainer\ndef train(run):\n    random.seed(3)\n    drawn = []\n"
        "    for step in run.steps(0):\n        drawn.append(random.random())\n"
        "        run.save_if_due(step, lambda: drawn)\n    print(drawn)\n"
        "@train.evaluate\ndef score(run, state):\n"
        "    return {'n': len([random.random() for _ in run.eval_batches(itertools.count())])}\ntrain()\n"
    )
    argv = ("--train-steps", "9", "--checkpoint-steps", "2")
    alone = laptop.run(*argv, "--job-dir", "a")
    scored = laptop.run(*argv, "--job-dir", "b", "--eval-steps", "4")
    assert scored.stdout == alone.stdout
    assert '"eval_n": 4.0' in (laptop.folder / "b" / "metrics.jsonl").read_text()


def test_eval_steps_of_a_trainer_that_cannot_be_evaluated_are_an_error(laptop: Laptop) -> None:
    laptop.script.write_text("import outlast\n@outlast.trainer\ndef train(run): pass\ntrain()\n")
    done = laptop.run("--eval-steps", "3")
    assert done.returncode == 2
    assert "@train.evaluate" in done.stderr


def test_evaluate_without_a_checkpoint_is_an_error_and_creates_nothing(laptop: Laptop) -> None:
    done = laptop.run("--mode", "evaluate", "--job-dir", "job")
    assert done.returncode == 2
    assert "job: no checkpoint to evaluate" in done.stderr
    assert not (laptop.folder / "job").exists()


def test_evaluate_without_a_function_is_an_error(laptop: Laptop) -> None:
    laptop.script.write_text("import outlast\n@outlast.trainer\ndef train(run): pass\ntrain()\n")
    done = laptop.run("--mode", "evaluate")
    assert done.returncode == 2
    assert "@train.evaluate" in done.stderr


@pytest.fixture
def cloud_storage(laptop: Laptop, tmp_path: Path) -> Iterator[str]:
    """The URL of a job folder in a bucket with Google's protocol."""
    from outlast_gcp_emulator.endpoint import Endpoint

    endpoint = Endpoint(str(tmp_path / "served"))
    endpoint.start()
    body, headers = json.dumps({"name": "jobs"}).encode(), {"Content-Type": "application/json"}
    urlopen(Request(f"{endpoint.url}/storage/v1/b?project=p", data=body, headers=headers)).close()
    laptop.environment["STORAGE_EMULATOR_HOST"] = endpoint.url
    yield "gs://jobs/census/one"
    endpoint.stop()


@pytest.mark.parametrize("kind", ["folder", "file", "gs"])
def test_a_training_that_receives_sigterm_resumes(laptop: Laptop, kind: str, request: pytest.FixtureRequest) -> None:
    job = {"folder": "job", "file": f"file://{laptop.folder}/far/job"}.get(kind)
    job = job or request.getfixturevalue("cloud_storage")
    process = laptop.start("--job-dir", job, "--lr", "0.9", "--train-steps", "40", SLOWLY="1")
    assert process.stdout is not None
    for line in process.stdout:
        if line == "step 5\n":
            process.send_signal(signal.SIGTERM)
            break
    process.communicate(timeout=600)
    assert process.returncode == 0
    again = laptop.begun("--job-dir", job)
    assert again["lr"] == 0.9
    assert again["total"] == 40
    assert 6 <= int(str(again["step"])) < 40
    assert laptop.metrics("--job-dir", job)["steps"] == 40


def test_a_bucket_is_enough_on_another_computer(laptop: Laptop, tmp_path_factory: pytest.TempPathFactory) -> None:
    far = tmp_path_factory.mktemp("far")
    other = Laptop(tmp_path_factory.mktemp("other"))
    job = ["--job-dir", f"file://{far}/jobs/one"]
    laptop.begun(*job, "--lr", "0.25", "--train-steps", "5", "--checkpoint-steps", "1")
    assert len(list((far / "jobs" / "one").glob("step-*/checkpoint.json"))) <= 2
    assert "is finished" in other.run(*job).stderr
    assert other.metrics(*job)["error"] == 0.25**5
    assert other.begun(*job, "--train-steps", "6")["step"] == 5
    assert laptop.metrics(*job)["steps"] == 6
    assert "--lr is 0.25" in laptop.run(*job, "--lr", "0.5").stderr


def test_a_damaged_checkpoint_in_the_bucket_is_skipped(
    laptop: Laptop, tmp_path_factory: pytest.TempPathFactory
) -> None:
    far = tmp_path_factory.mktemp("far")
    for steps in ("3", "5"):
        laptop.begun("--job-dir", f"file://{far}", "--train-steps", steps)
    (far / "step-000000005" / "rank-0" / "state.bin").write_bytes(b"?")
    other = Laptop(tmp_path_factory.mktemp("other"))
    done = other.run("--job-dir", f"file://{far}", "--mode", "evaluate")
    assert "trying the previous one" in done.stderr
    assert json.loads(done.stdout)["steps"] == 3


def on_machine(laptop: Laptop, **params: object) -> dict[str, str]:
    paths = {name: str(laptop.folder / "machine" / name.lower()) for name in ("NOTICE_FILE", "DONE_FILE")}
    paths |= {"CHECKPOINT_DIR": str(laptop.folder / "ckpt"), "METRICS_FILE": str(laptop.folder / "metrics")}
    return {
        "OUTLAST_RUN": "run-1",
        "OUTLAST_PARAMS": json.dumps(params),
        **{f"OUTLAST_{name}": path for name, path in paths.items()},
    }


def test_on_a_machine_the_parameters_of_the_run_are_the_defaults(laptop: Laptop) -> None:
    machine = on_machine(laptop, **{"lr": 0.125, "train-steps": 3, "shuffle": False, "other": [1]})
    begun = laptop.begun("--depth", "9", **machine)
    assert (begun["lr"], begun["depth"], begun["shuffle"], begun["total"]) == (0.125, 9, False, 3)
    assert [path.name for path in (laptop.folder / "ckpt").iterdir()] == ["step-000000003"]
    done = json.loads((laptop.folder / "machine" / "done_file").read_text())
    assert done["metrics"] == {"error": 0.125**3}


def test_a_flag_overrides_the_parameters_of_the_run(laptop: Laptop) -> None:
    assert laptop.begun("--lr", "0.75", "--train-steps", "1", **on_machine(laptop, lr=0.125))["lr"] == 0.75


def test_an_invalid_parameter_of_the_run_is_an_error(laptop: Laptop) -> None:
    done = laptop.run(**on_machine(laptop, depth="deep"))
    assert done.returncode == 2
    assert "parameter `depth`: `deep` is not a whole number" in done.stderr


def test_without_a_total_it_trains_until_sigterm(laptop: Laptop) -> None:
    process = laptop.start("--job-dir", "job", "--checkpoint-steps", "10", SLOWLY="1")
    eventually(lambda: list((laptop.folder / "job").glob("step-*")), what="a checkpoint")
    process.terminate()
    process.communicate(timeout=600)
    assert process.returncode == 0
    assert not (laptop.folder / "job" / "done.json").exists()


def test_a_parameter_that_cannot_be_a_flag_is_an_error_of_the_author() -> None:
    def positional(run: object, lr: float) -> None: ...
    def unusual(run: object, *, widths: list[int]) -> None: ...
    def taken(run: object, *, job_dir: str) -> None: ...
    def mistaken(run: object, *, opt: Literal["a", "b"] = "c") -> None: ...  # type: ignore[assignment]
    def alone() -> None: ...

    for function, message in [
        *((positional, "`lr` must be keyword-only"), (unusual, "`widths` cannot be a flag")),
        *((taken, "`job_dir` is a flag of every trainer"), (mistaken, "`c` is not `a` or `b`")),
        (alone, "first parameter must be the run"),
    ]:
        with pytest.raises(UsageError, match=message):
            parameters_of(function)
    with pytest.raises(UsageError, match="has no parameter `data`"):
        outlast.trainer(free=("data",))(lambda run: None)


def test_a_flag_without_a_default_is_required_once(laptop: Laptop) -> None:
    laptop.script.write_text(
        "import outlast\n@outlast.trainer\ndef train(run, *, lr: float):\n"
        "    for step in run.steps((run.restore() or {'step': 0})['step']):\n"
        "        run.save_if_due(step, lambda: {'step': step + 1})\n    print(lr)\ntrain()\n"
    )
    done = laptop.run("--train-steps", "2")
    assert done.returncode == 2
    assert "--lr is required" in done.stderr
    assert laptop.run("--lr", "3", "--train-steps", "2").stdout == "3.0\n"
    assert laptop.run("--train-steps", "4").stdout == "3.0\n"


def test_a_pickled_job_is_an_error_unless_the_program_uses_pickle(laptop: Laptop) -> None:
    def run(option: str, steps: str) -> subprocess.CompletedProcess[str]:
        laptop.script.write_text(
            f"import outlast\nclass Model:\n    step = 0\n@outlast.trainer{option}\ndef train(run):\n"
            "    state = run.restore() or Model()\n    print(state.step)\n    for step in run.steps(state.step):\n"
            "        state.step = step + 1\n        run.save_if_due(step, lambda: state)\ntrain()\n"
        )
        return laptop.run("--train-steps", steps)

    assert "error: state cannot be saved without pickle: __main__.Model" in run("", "2").stderr
    assert run("(pickle=True)", "2").returncode == 0
    refused = run("", "3")
    assert refused.returncode == 1
    assert "state.pickle is a pickle" in refused.stderr
    assert "hint: if you trust everyone who can write" in refused.stderr
    assert run("(pickle=True)", "3").stdout == "2\n"


def test_the_snippets_of_the_document_work(laptop: Laptop) -> None:
    library, program = re.findall(r"```python[^\n]*\n(.*?)```", document("trainer.md"), re.DOTALL)
    laptop.script.write_text(library)
    assert laptop.run().returncode == 0
    done = json.loads((laptop.folder / ".outlast-local" / "done.json").read_text())
    assert done["metrics"]["weight"] == pytest.approx(3.0)
    laptop.script.write_text(program)
    assert laptop.run("--train-steps", "1000", "--lr", "0.05", "--no-shuffle", "--job-dir", "job").returncode == 0
    assert laptop.metrics("--job-dir", "job")["error"] == pytest.approx(0.0, abs=1e-9)
    contradicted = laptop.run("--job-dir", "job", "--lr", "0.1").stderr
    assert [line.strip() for line in contradicted.splitlines()] == [
        line.strip() for line in re.findall(r"^  (?:error|hint): .*$", document("trainer.md"), re.MULTILINE)
    ]
