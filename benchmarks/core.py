"""The core benchmarks: start-up of commands, time to the first output, recovery, size, memory, idle CPU, checkpoints.

    python benchmarks/core.py [--quick] [--only PART] [--json]

Figures are the median and the worst of several repetitions, with a comparison within the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import footprint
import journey
import startup
from measure import Table, print_tables

PARTS = {
    "start": lambda quick: [startup.measure(5 if quick else 25)],
    "journey": lambda quick: journey.measure(2 if quick else 9),
    "weight": lambda quick: [footprint.size(), footprint.memory(2 if quick else 5)],
    "quiet": lambda quick: [footprint.quiet(1, 4 if quick else 15), footprint.quiet(20, 4 if quick else 15)],
    "checkpoint": lambda quick: [footprint.checkpoint(2 if quick else 5)],
}


def computer() -> str:
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return (
        f"{os.cpu_count()} cores, {memory_gb:.0f} GB, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}, load {os.getloadavg()[0]:.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--only", choices=PARTS, help="one part alone")
    parser.add_argument("--json", action="store_true", help="data instead of tables")
    options = parser.parse_args()
    result = {"computer": computer()}
    if not options.json:
        print(result["computer"], flush=True)
    tables: list[Table] = []
    for name, part in PARTS.items():
        if options.only in (None, name):
            for table in part(options.quick):
                tables.append(table)
                if not options.json:
                    print_tables(table)
    if options.json:
        shown = [{"title": t.title, "note": t.note, "rows": [r._asdict() for r in t.rows]} for t in tables]
        print(json.dumps({**result, "tables": shown}, indent=2))


if __name__ == "__main__":
    main()
