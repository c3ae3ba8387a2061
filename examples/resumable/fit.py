"""A function on spot machines that continues where it was: it saves itself when its machine is preempted.

The method `checkpoint` is called in the process of the call, at the notice. It returns the call that continues: here
the same object, whose attributes are the state. Without the method, a preempted call starts again on another machine.
"""

from __future__ import annotations

import argparse
import time

import outlast


class Fit:
    """Estimate pi by adding a series, a part at a time."""

    def __init__(self, pause_s: float) -> None:
        self.pause_s = pause_s
        self.terms = 0
        self.sum = 0.0
        self.moves = 0

    def __call__(self, terms: int) -> tuple[float, int, int]:
        begun_at = self.terms
        print(f"begins at term {begun_at}", flush=True)
        while self.terms < terms:
            for n in range(self.terms, min(self.terms + 1000, terms)):
                self.sum += (-1) ** n / (2 * n + 1)
            self.terms = min(self.terms + 1000, terms)
            time.sleep(self.pause_s)
        return 4 * self.sum, begun_at, self.moves

    def checkpoint(self, terms: int) -> outlast.DelayedCall:
        self.moves += 1
        return outlast.DelayedCall(self, terms)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--terms", type=int, default=20_000)
    parser.add_argument("--pause", type=float, default=0.5)
    given = parser.parse_args()
    with outlast.Executor(max_workers=1, name="fit") as pool:
        value, begun_at, moves = pool.submit(Fit(given.pause), given.terms).result()
    print(f"pi is about {value:.4f}; the last machine began at term {begun_at}, after {moves} preemptions")


if __name__ == "__main__":
    main()
