"""Fit a line by gradient descent. A program of Hydra: nothing in it knows that its jobs run on spot machines."""

from __future__ import annotations

import json
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config) -> float:
    xs = [number / 10 for number in range(11)]
    ys = [3 * x + 1 for x in xs]
    slope = offset = 0.0
    for _ in range(config.steps):
        errors = [slope * x + offset - y for x, y in zip(xs, ys, strict=True)]
        slope -= config.lr * 2 * sum(e * x for e, x in zip(errors, xs, strict=True)) / len(xs)
        offset -= config.lr * 2 * sum(errors) / len(xs)
    loss = sum((slope * x + offset - y) ** 2 for x, y in zip(xs, ys, strict=True)) / len(xs)
    folder = Path(HydraConfig.get().runtime.output_dir)
    (folder / "result.json").write_text(json.dumps({"lr": config.lr, "loss": loss}))
    print(f"lr {config.lr}: loss {loss:.6f}")
    return loss


if __name__ == "__main__":
    main()
