"""The end of a training whose process forked others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_training_closes_although_a_forked_worker_holds_the_pipe_of_its_saver(tmp_path: Path) -> None:
    script = """
import os, signal, outlast
run = outlast.training(every_steps=1)
run.save(1, {"step": 1}, wait=True)
worker = os.fork()
if worker == 0:
    signal.pause()
run.close()
os.kill(worker, signal.SIGKILL)
print("closed")
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.returncode) == ("closed\n", 0), done.stderr
