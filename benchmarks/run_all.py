"""Runs all benchmarks one after the other, and prints which goals were met.

    python benchmarks/run_all.py [--quick] [--only PART] [--traces FOLDER] [--strict]

Prints the tables of the README. A part that cannot run here (no Ray, no traces) is skipped with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from core import computer
from measure import GOALS
from policies import TRACES
from prices import PRICES

HERE = Path(__file__).resolve().parent


class Part(NamedTuple):
    """A script, its arguments for a quick and a full run, and its requirements."""

    script: str
    quick: tuple[str, ...] = ()
    full: tuple[str, ...] = ()
    needs: str = ""


PARTS = {
    "heart": Part("core.py", quick=("--quick",)),
    "load": Part("load.py", quick=("10", "1000")),
    "ledger": Part("ledger.py", quick=("--runs", "200")),
    "prune": Part("prune.py", quick=("--runs", "200")),
    "workspace": Part("workspace.py", quick=("--quick", "--times", "3")),
    "checkpoint": Part("checkpoint.py", quick=("--quick",)),
    "smallfiles": Part("smallfiles.py", quick=("--quick",)),
    "trainer": Part("trainer.py", quick=("--gb", "0.2", "--rounds", "3"), needs="numpy"),
    "trainer-peers": Part("trainer_peers.py", quick=("--gb", "0.2", "--rounds", "1"), needs="torch"),
    "machines": Part("machines.py", quick=("--quick",)),
    "sync": Part("sync.py", quick=("--quick",)),
    "gcp": Part("gcp.py"),
    "environments": Part("environments.py", quick=("--quick",)),
    "emulated": Part("emulated.py", quick=("--times", "2", "--idle", "20", "--many", "5")),
    "notice": Part("notice.py", quick=("--seeds", "3")),
    "nodes": Part("nodes.py", quick=("--quick",)),
    "policies": Part("policies.py", quick=("--set", "first", "--no-foresight"), needs=TRACES),
    "supervised": Part("supervised.py", quick=("--set", "first", "--windows", "3"), needs=TRACES),
    "prices": Part("prices.py", needs=PRICES),
    "sweep": Part("sweep.py", quick=("--trials", "6", "--seconds", "4"), needs="joblib"),
    "executor": Part("executor.py", quick=("--calls", "100", "--times", "2"), needs="cloudpickle"),
    "clusters": Part("clusters.py", quick=("--repeat", "1"), needs="ray"),
    "drill": Part("drill.py", quick=("--only", "torchvision_classification", "--preemptions", "1"), needs="torch"),
    "page": Part("dashboard.py", quick=("--quick",), needs="nicegui"),
}


def lacking(part: Part) -> str:
    if not part.needs:
        return ""
    if os.path.isabs(part.needs):
        return "" if os.path.isdir(part.needs) else f"no folder {os.path.basename(part.needs)} with recorded capacity"
    found = subprocess.run([sys.executable, "-c", f"import {part.needs}"], capture_output=True, check=False)
    return "" if found.returncode == 0 else f"{part.needs} is not installed"


def run(name: str, part: Part, *, quick: bool, goals: str) -> str:
    """Run a part and return why it could not be measured; empty if it was."""
    if why := lacking(part):
        print(f"\n## {name}: left out, {why}", flush=True)
        return why
    print(f"\n## {name}", flush=True)
    argv = [sys.executable, str(HERE / part.script), *(part.quick if quick else part.full)]
    done = subprocess.run(argv, env={**os.environ, GOALS: goals}, check=False)
    return f"it ended with {done.returncode}" if done.returncode else ""


def summary(goals: list[dict[str, object]], missing: dict[str, str]) -> str:
    lines = ["## Goals", "", "| of | what | seen | goal | |", "|---|---|---|---|---|"]
    for one in goals:
        met = "met" if one["met"] else "**not met**"
        lines.append(f"| {one['part']} | {one['what']} | {one['seen']} | {one['goal']} | {met} |")
    short = [f"{one['what']} ({one['part']}): {one['seen']}, goal {one['goal']}" for one in goals if not one["met"]]
    lines += ["", f"{len(goals) - len(short)} of {len(goals)} goals met."]
    lines += [f"- falls short: {each}" for each in short]
    lines += [f"- not measured: {name}: {why}" for name, why in missing.items()]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller cases: about ten minutes")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part (may be repeated)")
    parser.add_argument(
        "--traces", default=TRACES, metavar="FOLDER", help="recorded capacity, for `policies` and `supervised`"
    )
    parser.add_argument("--strict", action="store_true", help="end with 1 if a goal was missed or not measured")
    options = parser.parse_args()
    began, missing = time.monotonic(), {}
    traces = ("--traces", options.traces)
    for name in ("policies", "supervised"):
        part = PARTS[name]
        PARTS[name] = Part(part.script, quick=part.quick + traces, full=traces, needs=os.path.abspath(options.traces))
    print(f"# {computer()}", flush=True)
    with tempfile.NamedTemporaryFile("r", suffix=".jsonl", encoding="utf-8") as noted:
        for name, part in PARTS.items():
            wanted = not options.only or name in options.only
            if wanted and (why := run(name, part, quick=options.quick, goals=noted.name)):
                missing[name] = why
        goals = [json.loads(line) for line in noted]
    print("\n" + summary(goals, missing))
    print(f"\nmeasured in {(time.monotonic() - began) / 60:.0f} minutes", file=sys.stderr)
    return int(options.strict and (bool(missing) or not all(one["met"] for one in goals)))


if __name__ == "__main__":
    sys.exit(main())
