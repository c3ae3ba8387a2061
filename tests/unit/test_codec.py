"""Decoding of stored objects by many threads at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from outlast.code.record import CodeRecord
from outlast.spec.parse import parse
from outlast.workspace import RunRequest

# In a separate process: only the first time is dangerous, and the failure would be a crash of the process.
AT_ONCE = """
import sys, threading
from outlast.store.codec import decoded
from outlast.workspace import RunRequest
sys.setswitchinterval(1e-6)
body = open(sys.argv[1], "rb").read()
together = threading.Barrier(8)


def read():
    together.wait()
    assert decoded(body, RunRequest, "spec.json").run == "census-7"


threads = [threading.Thread(target=read) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("read")
"""


def test_threads_that_read_a_kind_of_record_for_the_first_time_do_not_crash_the_process(tmp_path: Path) -> None:
    request = RunRequest(run="census-7", spec=parse({"command": "true"}), code=CodeRecord())
    (tmp_path / "spec.json").write_bytes(msgspec.json.encode(request))
    argv = [sys.executable, "-c", AT_ONCE, str(tmp_path / "spec.json")]
    for _ in range(8):
        answer = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert (answer.returncode, answer.stdout) == (0, "read\n"), answer.stderr
