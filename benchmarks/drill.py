"""Verdicts of the drill on training scripts of frameworks, each resuming and not, against the right ones.

    .venv/bin/python benchmarks/drill.py [--only NAME] [--python PATH] [--preemptions N] [--keep FILE]

The scripts are in `drill_scripts`. `--python` names a Python with the frameworks of `drill_scripts/requirements.txt`;
they are heavy and stay out of the environment of the tests. Rows whose framework it lacks are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from measure import OUTLAST, Home, Table, home, once, print_tables

HERE = Path(__file__).resolve().parent / "drill_scripts"
_OVER, _NOTHING = "from the beginning", "nothing was"


class Row(NamedTuple):
    """A script, its checkpoint files, and the arguments with which it resumes and with which it does not."""

    script: str
    needs: str
    checkpoint: str
    resuming: str
    naive: str = ""
    # Part of the answer to `resumes` without the arguments: it ignores its checkpoint, or it saves nothing.
    reason: str = _OVER
    launcher: str = "python"
    arguments: str = ""
    # A question that the resuming variant answers with a warning, too.
    finds: str = ""


ROWS = {
    "hf_trainer": Row(
        "hf_trainer.py",
        "transformers",
        "out",
        "{resume:--resume_from_checkpoint {newest:out/checkpoint-*}}",
        arguments="--output_dir out --max_steps 150 --per_device_train_batch_size 8 --save_steps 10 "
        "--logging_steps 5 --use_cpu --report_to none",
    ),
    "hf_accelerate": Row(
        "hf_accelerate.py", "accelerate", "out", "{resume:--resume_from_checkpoint {newest:out/step_*}}"
    ),
    "lightning_trainer": Row(
        "lightning_trainer.py", "lightning", "checkpoints", "{resume:--ckpt_path {newest:checkpoints/last.ckpt}}"
    ),
    "lightning_hydra": Row(
        "lightning_hydra.py",
        "hydra",
        "logs/train/runs/*/checkpoints/*.ckpt",
        "{resume:ckpt_path={newest:logs/train/runs/*/checkpoints/last.ckpt}}",
    ),
    "keras_fit": Row("keras_fit.py", "keras", "checkpoints", "--backup"),
    "xgboost_train": Row("xgboost_train.py", "xgboost", "checkpoints", "--resume"),
    "lightgbm_train": Row("lightgbm_train.py", "lightgbm", "checkpoints", "--resume"),
    "catboost_train": Row("catboost_train.py", "catboost", "catboost_info", "--snapshot", reason=_NOTHING),
    "sb3_ppo": Row("sb3_ppo.py", "stable_baselines3", "checkpoints", "--resume"),
    "timm_train": Row("timm_train.py", "torch", "output", "{resume:--resume {newest:output/last.pth.tar}}"),
    "torchvision_classification": Row(
        "torchvision_classification.py", "torch", "out", "{resume:--resume {newest:out/checkpoint.pth}}"
    ),
    "imagenet_main": Row("imagenet_main.py", "torch", "*.pth.tar", "--resume checkpoint.pth.tar"),
    "nanogpt": Row("nanogpt.py", "torch", "out", "{resume:--init_from=resume {exists:out/ckpt.pt}}"),
    "orbax_flax": Row("orbax_flax.py", "orbax", "checkpoints", "--restore"),
    "fsdp_dcp": Row(
        "fsdp_dcp.py", "torch", "checkpoints", "--resume", launcher="torchrun --standalone --nproc_per_node 2"
    ),
    "ultralytics_style": Row("ultralytics_style.py", "torch", "runs", "resume=True"),
    "fastai_style": Row("fastai_style.py", "torch", "models", "--resume"),
    "mmengine_runner": Row("mmengine_runner.py", "mmengine", "work_dirs", "--resume"),
    "optuna_study": Row("optuna_study.py", "optuna", "study.db", "--storage sqlite:///study.db", reason=_NOTHING),
    "sklearn_partial_fit": Row("sklearn_partial_fit.py", "sklearn", "checkpoints", "--resume"),
    "word_language_model": Row("word_language_model.py", "torch", "model.pt", "--resume"),
}


class Seen(NamedTuple):
    """The outcome of one drill."""

    name: str
    variant: str
    right: bool
    exit_code: int
    resumes: str
    answer: str
    others: str
    seconds: float


def drilled(name: str, row: Row, *, resuming: bool, python: str, extra: list[str]) -> tuple[Seen, str]:
    with home() as place:
        shutil.copytree(HERE, place.project, dirs_exist_ok=True, ignore=shutil.ignore_patterns("requirements.txt"))
        arguments = " ".join([row.arguments, row.resuming if resuming else row.naive]).strip()
        command = f"{row.launcher} {row.script} {arguments}".strip()
        text = f"command = {json.dumps(command)}\n[checkpoint]\npath = {json.dumps(row.checkpoint)}\n"
        (Path(place.project) / "outlast.toml").write_text(text, encoding="utf-8")
        began = time.monotonic()
        done = _outlast(place, python, "drill", "--json", *extra)
        took = time.monotonic() - began
        logs = "".join(_outlast(place, python, "logs", run).stdout for run in place.workspace.runs())
        found = json.loads(done.stdout) if done.stdout.strip().startswith("{") else {}
        return _judged(name, row, resuming, done, found, took), f"{logs}\n{done.stderr}\n{done.stdout}"


def _outlast(place: Home, python: str, *argv: str) -> subprocess.CompletedProcess[str]:
    environment = {**place.environment, "PATH": os.pathsep.join([os.path.dirname(python), place.environment["PATH"]])}
    environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [OUTLAST, *argv],
        cwd=place.project,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def _judged(
    name: str, row: Row, resuming: bool, done: subprocess.CompletedProcess[str], report: dict[str, Any], took: float
) -> Seen:
    findings = {f["question"]: f for f in report.get("findings", [])}
    resumes = findings.get("resumes", {"verdict": "none", "answer": done.stderr.strip()[-300:]})
    failed = [q for q, f in findings.items() if f["verdict"] == "fail" and q != "resumes"]
    warned = [q for q, f in findings.items() if f["verdict"] == "warn"]
    if resuming:
        right = done.returncode == 0 and resumes["verdict"] == "pass"
    else:
        right = done.returncode == 8 and resumes["verdict"] == "fail" and row.reason in resumes["answer"]
    others = "; ".join([*(f"fails: {q}" for q in failed), *(f"warns: {q}" for q in warned)])
    variant = "resumes" if resuming else "starts over"
    return Seen(name, variant, right, done.returncode, resumes["verdict"], resumes["answer"], others, took)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=ROWS, action="append", help="this script (may be repeated)")
    parser.add_argument("--variant", choices=("resuming", "naive"), help="this variant only")
    parser.add_argument("--python", default=sys.executable, help="a Python with the frameworks")
    parser.add_argument("--preemptions", default="3", metavar="N")
    parser.add_argument("--compare", action="store_true", help="compare with an undisturbed run, too")
    parser.add_argument("--keep", metavar="FOLDER", help="keep the output of every drill here")
    options = parser.parse_args()
    extra = ["--preemptions", options.preemptions, *(["--compare"] if options.compare else [])]
    found: list[Seen] = []
    print("| script | variant | right | verdict | evidence | other findings |\n|---|---|---|---|---|---|", flush=True)
    for name, row in ROWS.items():
        if options.only and name not in options.only:
            continue
        if _lacks(options.python, row.needs):
            print(f"{name}: left out, {row.needs} is not installed", file=sys.stderr)
            continue
        for resuming in (True, False):
            if options.variant and resuming != (options.variant == "resuming"):
                continue
            seen, text = drilled(name, row, resuming=resuming, python=options.python, extra=extra)
            found.append(seen)
            right = "yes" if seen.right else "**no**"
            cells = (name, seen.variant, right, f"{seen.exit_code} {seen.resumes}", seen.answer, seen.others)
            print(f"| {' | '.join(cells)} |", flush=True)
            if options.keep:
                os.makedirs(options.keep, exist_ok=True)
                (Path(options.keep) / f"{name}-{seen.variant.replace(' ', '-')}.txt").write_text(text)
    right = sum(seen.right for seen in found)
    goal = once("right verdicts", right, f"of {len(found)}", goal="all", met=right == len(found))
    print_tables(Table("Verdicts of the drill", [goal]))
    return 0


def _lacks(python: str, module: str) -> bool:
    argv, environment = [python, "-c", f"import {module}"], {**os.environ, "KERAS_BACKEND": "torch"}
    return bool(subprocess.run(argv, env=environment, capture_output=True, check=False).returncode)


if __name__ == "__main__":
    sys.exit(main())
