"""The reader of `[sweep]`: search space, goals and settings. No IO."""

from __future__ import annotations

import math
import re
from typing import Any

from outlast.spec.reader import Reader, count, of, text
from outlast.spec.spec import Dimension, ParamValue, SweepSpec

SAMPLERS = ("tpe", "random", "grid", "nsga2")
PRUNERS = ("none", "asha", "hyperband", "median")
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"(?P<log>log\()?(?P<low>{_NUMBER})\.\.(?P<high>{_NUMBER})(?(log)\))(?::(?P<step>{_NUMBER}))?")
_WHOLE = re.compile(r"[+-]?\d+")
# A dimension with more values counts as unbounded.
_GRID_MAX = 100_000
_EXAMPLES = "expected e.g. `log(1e-4..1e-1)`, `3..10`, `0..1:0.1` or `adam,sgd`"


def looks_searched(written: str) -> bool:
    """Return whether a value on the command line is a search space: `3..10`, `log(…)`, `adam,sgd`."""
    return ".." in written or "," in written or written.replace(" ", "").startswith("log(")


def dimension(value: Any) -> Dimension:
    """Read the values that a parameter may take: a range as text, or a list. Raises ValueError."""
    if isinstance(value, list | tuple):
        return _choice(value)
    if not isinstance(value, str):
        raise ValueError(f"invalid search space {value!r}: {_EXAMPLES}")
    written = value.replace(" ", "")
    if ".." not in written and "," in written and not written.startswith("log("):
        return _choice([_typed(item.strip()) for item in value.split(",")])
    match = _RANGE.fullmatch(written)
    if match is None:
        raise ValueError(f"invalid range {value!r}: {_EXAMPLES}")
    return _range(value, match)


def _range(written: str, match: re.Match[str]) -> Dimension:
    numbers = [number for number in (match["low"], match["high"], match["step"]) if number]
    whole = all(_WHOLE.fullmatch(number) for number in numbers)
    low, high = float(match["low"]), float(match["high"])
    step = float(match["step"]) if match["step"] else 0.0
    if not all(math.isfinite(number) for number in (low, high, step)):
        raise ValueError(f"invalid range {written!r}: expected finite numbers")
    if low > high:
        raise ValueError(f"range {written!r} is empty: {match['low']} is more than {match['high']}")
    if match["log"] and low <= 0:
        raise ValueError(f"invalid range {written!r}: a logarithmic range must start above 0")
    if match["step"] and match["log"]:
        raise ValueError(f"invalid range {written!r}: a logarithmic range cannot have a step")
    if match["step"] and step <= 0:
        raise ValueError(f"invalid range {written!r}: the step must be above 0")
    return Dimension(kind="int" if whole else "float", low=low, high=high, step=step, log=bool(match["log"]))


def _choice(values: list[Any] | tuple[Any, ...]) -> Dimension:
    if not values or any(value == "" for value in values):
        raise ValueError(f"expected values that are not empty, got {list(values)!r}")
    for value in values:
        if not isinstance(value, str | int | float | bool) or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(f"expected text, a finite number or true/false, got {value!r}")
    if len({(type(value), value) for value in values}) < len(values):
        raise ValueError(f"expected each value once, got {list(values)!r}")
    return Dimension(kind="choice", choices=tuple(values))


def _typed(word: str) -> ParamValue:
    if word in ("true", "false"):
        return word == "true"
    if _WHOLE.fullmatch(word):
        return int(word)
    return float(word) if re.fullmatch(_NUMBER, word) else word.strip("\"'")


def values_of(searched: Dimension) -> tuple[ParamValue, ...] | None:
    """Return every value of a dimension, in order; None if it is continuous or too large."""
    if searched.kind == "choice":
        return searched.choices
    if searched.log or (searched.kind == "float" and not searched.step):
        return None
    step = searched.step or 1.0
    count_ = math.floor((searched.high - searched.low) / step + 1e-9) + 1
    if count_ > _GRID_MAX:
        return None
    found = [searched.low + step * place for place in range(count_)]
    return tuple(int(value) for value in found) if searched.kind == "int" else tuple(round(v, 12) for v in found)


def first_of(searched: Dimension) -> ParamValue:
    """Return one value, for checks before the first trial."""
    if searched.kind == "choice":
        return searched.choices[0]
    return int(searched.low) if searched.kind == "int" else searched.low


def grid_size(space: dict[str, Dimension]) -> int:
    """Return the number of points of the grid; 0 if it is unbounded."""
    return math.prod(len(values_of(searched) or ()) for searched in space.values())


def read_sweep(reader: Reader) -> SweepSpec:
    """Read the section."""
    inner: dict[str, Any] = reader.take("params", of(dict), {})
    below = Reader(inner, section="sweep.params", problems=reader.problems)
    nothing = Dimension(kind="choice", choices=("",))
    space = {name: below.take(name, dimension, nothing) for name in inner}
    goals: tuple[str, ...] = reader.take("goal", _goals, ())
    defaults = SweepSpec()
    found = SweepSpec(
        params=space,
        goals=goals,
        trials=reader.take("trials", count, 0),
        parallel=reader.take("parallel", count, defaults.parallel),
        per_machine=reader.take("per_machine", count, defaults.per_machine),
        sampler=reader.take("sampler", _one_of(SAMPLERS), "tpe" if len(goals) < 2 else "nsga2"),
        pruner=reader.take("pruner", _one_of(PRUNERS), defaults.pruner),
        min_steps=reader.take("min_steps", count, defaults.min_steps),
        seed=reader.take("seed", of(int), defaults.seed),
        failures=reader.take("failures", count, defaults.failures),
        metrics=reader.take("metrics", _source, defaults.metrics),
        flags=reader.take("flags", of(bool), defaults.flags),
    )
    _check(reader, found)
    reader.finish()
    return found


def _check(reader: Reader, found: SweepSpec) -> None:
    if found.pruner != "none" and len(found.goals) > 1:
        reader.wrong("pruner", f"supports one goal, got {len(found.goals)}; remove it")
    if found.sampler == "grid":
        for name, searched in found.params.items():
            if values_of(searched) is None:
                reader.wrong(
                    "sampler", f"a grid requires a finite number of values; give `{name}` a step, as in `0..1:0.1`"
                )


def _goals(value: Any) -> tuple[str, ...]:
    found = []
    for one in value if isinstance(value, list) else [value]:
        order, _, metric = text(one).partition(":")
        if order not in ("min", "max") or not metric.strip() or not metric.isprintable():
            raise ValueError(f'expected "min:METRIC" or "max:METRIC", such as "min:loss", got {one!r}')
        found.append(f"{order}:{metric.strip()}")
    if not found or len(set(found)) < len(found):
        raise ValueError(f"expected at least one goal, each once, got {value!r}")
    return tuple(found)


def _one_of(allowed: tuple[str, ...]) -> Any:
    def read(value: Any) -> str:
        if value not in allowed:
            raise ValueError(f"expected one of {', '.join(allowed)}, got {value!r}")
        return str(value)

    return read


def _source(value: Any) -> str:
    """Read `auto`, `log`, `output`, or `file:PATH` inside the outputs folder."""
    name = text(value)
    path = name.removeprefix("file:")
    if name not in ("auto", "log", "output") and (path == name or not path or path.startswith("/") or ".." in path):
        raise ValueError(f"expected auto, log, output or file:PATH inside the outputs folder, got {value!r}")
    return name
