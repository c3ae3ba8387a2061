"""A distributed run of two machines on any cloud that loses one of them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tests.support.home import Home

PROGRAM = Path(__file__).with_name("lockstep.py")
STEPS = 40


def expected(steps: int, nodes: int, layout: str = "shards") -> str:
    """Return the result of an undisturbed training."""
    owns = [str(rank) if layout == "shards" else "" for rank in range(nodes)]
    values = [f"begin {own or 0}" for own in owns]
    for step in range(steps):
        joined = "".join(values)
        values = [hashlib.sha256(f"{joined}{step}{own}".encode()).hexdigest()[:16] for own in owns]
    return " ".join(values)


def write_gang(
    home: Home,
    cloud: str,
    machine: str,
    *,
    nodes: int | str = 2,
    hold: int = 2,
    steps: int = STEPS,
    layout: str = "shards",
) -> None:
    """Write the program and the spec. The attempts before number `hold` wait for the end of a machine."""
    size = f'"{nodes}"' if isinstance(nodes, str) else nodes
    path = "snapshot.json" if layout == "copies" else "checkpoints"
    home.write("train.py", PROGRAM.read_text())
    home.write(
        "outlast.toml",
        f'name = "gang"\nenv = {{ HOLD_UNTIL = "{hold}" }}\ncommand = "python3 train.py {steps} 0.05 {layout}"\n'
        f'[machine]\ncloud = "{cloud}"\n{machine}\nnodes = {size}\n'
        f'[checkpoint]\npath = "{path}"\n[limits]\nno_progress = 100\n',
    )


def lose_one_of_two(home: Home) -> None:
    """Run, preempt node 1 with a notice, and check that the other one stays and the result is that without a loss."""
    process = home.start("run")

    def saved() -> bool:
        if not home.workspace.runs():
            return False
        current = home.state().current
        return current is not None and current.saves > 0

    home.until(saved, "a checkpoint of both machines", within_s=120)
    answer = home.outlast("preempt", "last", "--node", "1")
    assert answer.returncode == 0, answer.stderr
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    state = home.state()
    assert (state.ending, state.crashes) == ("finished", 0)
    first, second = state.attempts[:2]
    assert second.machines[0] == first.machines[0]
    assert second.machines[1] != first.machines[1]
    assert second.resumed_from
    assert (home.project / "outputs" / home.only_run() / "result.txt").read_text() == expected(STEPS, 2)
