"""Command-line flags from a function's keyword-only parameters: types, defaults, help."""

from __future__ import annotations

import argparse
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outlast.errors import UsageError

_TYPES: dict[Any, str] = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
_BOOLS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
OWN = ("job_dir", "train_steps", "checkpoint_steps", "eval_steps", "mode", "help")


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """One hyperparameter: its type, choices and default."""

    name: str
    kind: type
    default: Any = inspect.Parameter.empty
    choices: tuple[Any, ...] = ()
    may_be_none: bool = False
    help: str = ""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty

    def read(self, value: object, source: str) -> Any:
        """Convert a value from the command line or from JSON. Raises UsageError."""
        if self.may_be_none and (value is None or value == "none"):
            return None
        try:
            found = _convert(value, self.kind)
        except ValueError:
            found = None
        if found is None or (self.choices and found not in self.choices):
            expected = " or ".join(f"`{choice}`" for choice in self.choices) or _TYPES[self.kind]
            raise UsageError(f"{source}: `{value}` is not {expected}")
        return found


def _convert(value: object, kind: type) -> Any:
    if kind is bool:
        return _BOOLS.get(str(value).lower())
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if kind is int and isinstance(value, float):
        return int(value) if value.is_integer() else None
    return kind(value)


def parameters_of(function: Callable[..., Any]) -> list[Parameter]:
    """Return the keyword-only parameters of a trainer. Raises UsageError if one cannot be a flag."""
    given = list(inspect.signature(function).parameters.values())
    where = f"@outlast.trainer on `{function.__name__}`"
    if not given or given[0].kind not in (given[0].POSITIONAL_ONLY, given[0].POSITIONAL_OR_KEYWORD):
        raise UsageError(f"{where}: its first parameter must be the run", hint="def train(run, *, lr: float = 0.1)")
    wrong = [parameter.name for parameter in given[1:] if parameter.kind is not parameter.KEYWORD_ONLY]
    if wrong:
        raise UsageError(
            f"{where}: `{wrong[0]}` must be keyword-only to be a flag",
            hint="put a `*` after the run: def train(run, *, …)",
        )
    helps = _helps(function)
    return [_parameter(one, function, where, helps.get(one.name, "")) for one in given[1:]]


def _parameter(one: inspect.Parameter, function: Callable[..., Any], where: str, text: str) -> Parameter:
    if one.name in OWN:
        raise UsageError(f"{where}: `{one.name}` is a flag of every trainer", hint="give it another name")
    hint: Any = one.annotation
    if hint is one.empty:
        hint = str if one.default in (one.empty, None) else type(one.default)
    if isinstance(hint, str):
        hint = eval(hint, getattr(function, "__globals__", {}))  # the annotation in the user's code
    may_be_none = one.default is None
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        inner = [part for part in typing.get_args(hint) if part is not type(None)]
        may_be_none |= len(inner) < len(typing.get_args(hint))
        hint = inner[0] if len(inner) == 1 else hint
    choices: tuple[Any, ...] = ()
    if typing.get_origin(hint) is typing.Literal:
        choices = typing.get_args(hint)
        hint = type(choices[0]) if len({type(choice) for choice in choices}) == 1 else hint
    if hint not in _TYPES:
        raise UsageError(
            f"{where}: `{one.name}` cannot be a flag: its type is {hint}",
            hint="use int, float, str, bool, Literal of one of them, or one of them `| None`",
        )
    made = Parameter(name=one.name, kind=hint, choices=choices, may_be_none=may_be_none, help=text)
    if one.default is one.empty:
        return made
    default = made.read(one.default, f"{where}: the default of `{one.name}`")
    return Parameter(name=one.name, kind=hint, default=default, choices=choices, may_be_none=may_be_none, help=text)


def _helps(function: Callable[..., Any]) -> dict[str, str]:
    """Return the lines `name: text` of the docstring."""
    return dict(re.findall(r"^\s*`?(\w+)`?\s*:\s+(\S.*)$", inspect.getdoc(function) or "", re.MULTILINE))


class _Parser(argparse.ArgumentParser):
    """Raises UsageError instead of exiting."""

    def error(self, message: str) -> typing.NoReturn:
        raise UsageError(message, hint=f"`{self.prog} --help` lists the flags")


def parse(
    argv: Sequence[str] | None, parameters: Sequence[Parameter], own: Sequence[Parameter], *, about: str
) -> dict[str, Any]:
    """Parse the command line. The result has only flags that were given. Raises UsageError."""
    parser = _Parser(description=about, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for title, group in (("the job", own), ("hyperparameters", parameters)):
        section = parser.add_argument_group(title)
        for parameter in group:
            section.add_argument(parameter.flag, **_options(parameter))
    given = vars(parser.parse_args(argv))
    known = {parameter.name: parameter for parameter in (*own, *parameters)}
    return {name: known[name].read(value, known[name].flag) for name, value in given.items()}


def _options(parameter: Parameter) -> dict[str, Any]:
    text = parameter.help.replace("%", "%%")
    if not parameter.required and parameter.default is not None:
        text = f"{text} (default: {str(parameter.default).replace('%', '%%')})".strip()
    elif parameter.required:
        text = f"{text} (required)".strip()
    if parameter.kind is bool and not parameter.may_be_none:
        return {"action": argparse.BooleanOptionalAction, "help": text}
    shown = "|".join(map(str, parameter.choices)) or parameter.kind.__name__.upper()
    return {"metavar": shown, "help": text, "dest": parameter.name}


def from_params(params: Mapping[str, Any], parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Return the values of the run's parameters that are flags; others are ignored. Raises UsageError."""
    spelled = {name.replace("-", "_"): value for name, value in params.items()}
    return {
        one.name: one.read(spelled[one.name], f"parameter `{one.name}`") for one in parameters if one.name in spelled
    }
