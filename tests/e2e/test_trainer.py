"""The trainer library on preemptible machines: the same five lines as on a laptop."""

from __future__ import annotations

import sys

from outlast.runs.logs import LogReader
from tests.support.home import Home

TRAINER = """
import time, outlast
run = outlast.training(every="0.3s")
state = run.restore() or {"step": 0, "sum": 0}
print("from", state["step"], flush=True)
for step in run.steps(state["step"], total=150):
    time.sleep(0.04)
    state = {"step": step + 1, "sum": state["sum"] + step}
    run.log(step, total=state["sum"])
    run.save_if_due(step, lambda: state)
    print("count", step, flush=True)
run.done(metrics={"sum": state["sum"]})
print("sum", state["sum"], flush=True)
"""


def test_a_notice_loses_no_step_and_a_power_cut_only_those_since_the_last_save(home: Home) -> None:
    home.write("train.py", TRAINER)
    process = home.start("run", "--", sys.executable, "train.py")
    home.until_counted(15)
    home.outlast("preempt", "last")
    home.until(lambda: len(home.state().attempts) > 1 and home.state().current, "the second attempt")
    # In the log of the second attempt: the first may have reached the same step before its notice.
    second_log = LogReader(home.workspace.bucket, home.only_run(), 2)
    home.until(lambda: any(b"count" in piece for piece in second_log.read()), "a step of the second attempt")
    home.outlast("preempt", "last", "--no-notice")
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    assert f"sum {sum(range(150))}" in output
    first, second, third = home.state().attempts
    assert (first.outcome, third.outcome) == ("preempted", "finished")
    logs = [
        b"".join(LogReader(home.workspace.bucket, home.only_run(), n).read()).decode().splitlines() for n in (1, 2, 3)
    ]
    starts = [int(line.split()[1]) for log in logs for line in log if line.startswith("from ")]
    last_of_the_first = max(int(line.split()[1]) for line in logs[0] if line.startswith("count "))
    assert starts[0] == 0
    assert starts[1] == last_of_the_first + 1  # the notice was used: nothing was done twice
    assert 16 <= starts[2] <= 150
    assert second.resumed_step == starts[1]
