"""The benchmarks of the heart: start of commands, way to the first output, recovery, size, memory, quiet, checkpoints.

    python benchmarks/heart.py [--quick] [--only PART] [--json]

Everything is compared within one run, with a named peer or limit, and told as median and worst: machines are noisy.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import journey
import start
import weight
from measure import Table, tell

PARTS = {
    "start": lambda quick: [start.measure(5 if quick else 25)],
    "journey": lambda quick: journey.measure(2 if quick else 9),
    "weight": lambda quick: [weight.size(), weight.memory(2 if quick else 5)],
    "quiet": lambda quick: [weight.quiet(1, 4 if quick else 15), weight.quiet(20, 4 if quick else 15)],
    "checkpoint": lambda quick: [weight.checkpoint(2 if quick else 5)],
}


def computer() -> str:
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return (
        f"{os.cpu_count()} cores, {memory_gb:.0f} GB, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}, load {os.getloadavg()[0]:.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, for a look")
    parser.add_argument("--only", choices=PARTS, help="one part alone")
    parser.add_argument("--json", action="store_true", help="data instead of tables")
    options = parser.parse_args()
    told = {"computer": computer()}
    if not options.json:
        print(told["computer"], flush=True)
    tables: list[Table] = []
    for name, part in PARTS.items():
        if options.only in (None, name):
            for table in part(options.quick):
                tables.append(table)
                if not options.json:
                    tell(table)
    if options.json:
        shown = [{"title": t.title, "note": t.note, "rows": [r._asdict() for r in t.rows]} for t in tables]
        print(json.dumps({**told, "tables": shown}, indent=2))


if __name__ == "__main__":
    main()
