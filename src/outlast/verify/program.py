"""The program of a verification's run: reports facts about its machine, then counts, with a checkpoint for each step.

It uses the standard library only, because it runs on the machine with the image's or the environment's Python.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from types import FrameType

STEP_S = 0.5


def facts() -> dict[str, object]:
    """Return facts about the machine that the verification compares with what it requested."""
    found: dict[str, object] = {
        "python": sys.version.split()[0],
        "free_gb": round(shutil.disk_usage(".").free / 1e9, 1),
        "at": time.time(),
        "secret": hashlib.sha256(os.environ.get("VERIFY_SECRET", "").encode()).hexdigest(),
    }
    if shutil.which("nvidia-smi"):
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
        found["gpus"] = len([line for line in listed.stdout.splitlines() if line.startswith("GPU ")])
    return found


def main() -> int:
    steps = int(sys.argv[1])
    stopping: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        stopping.append(number)

    signal.signal(signal.SIGTERM, stop)
    print("verify: facts " + json.dumps(facts()), flush=True)
    path = os.path.join(os.environ["OUTLAST_CHECKPOINT_DIR"], "step.json")
    done = 0
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            done = int(json.load(file)["step"])
    print(f"verify: resumed at {done}", flush=True)
    while done < steps and not stopping:
        time.sleep(STEP_S)
        done += 1
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump({"step": done}, file)
        os.replace(path + ".new", path)
        print(f"verify: step {done}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
