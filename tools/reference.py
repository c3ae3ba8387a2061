"""Generates docs/reference from the code: commands, the recorded spec, events, JSON, exit codes, variables.

docs/conf.py calls it for every build of the site. The generated files are not in git, so they are never out of date.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import types
import typing
from pathlib import Path

import click
import msgspec

from outlast import errors
from outlast.cli.app import all_commands
from outlast.cli.json_schema import json_type
from outlast.cli.shared.command import OutlastCommand
from outlast.runs import events
from outlast.spec import spec

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "docs" / "reference"


def command_page() -> str:
    parts = ["# Commands\n\nWith examples and prose: [commands.md](../commands.md).\n"]
    for name, command in all_commands():
        context = click.Context(command, info_name=f"outlast {name}")
        usage = " ".join(["outlast", name, *command.collect_usage_pieces(context)])
        help_text = _plain(inspect.cleandoc(command.help or ""))
        parts.append(f"\n## outlast {name}\n\n{help_text}\n\n```text\n{usage}\n```\n")
        rows = [_option(option) for option in command.params if isinstance(option, click.Option) and not option.hidden]
        if rows:
            parts.append("\n| option | meaning |\n|---|---|\n" + "".join(rows))
    return "".join(parts)


def _option(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    value = "" if option.is_flag else f" {_cell(_metavar(option))}"
    return f"| {names}{value} | {_cell(_plain(option.help or ''))} |\n"


def _metavar(option: click.Option) -> str:
    if option.metavar:
        return option.metavar
    if isinstance(option.type, click.Choice):
        return "|".join(str(choice) for choice in option.type.choices)
    return option.type.name.upper()


def event_page() -> str:
    parts = ["# Events\n\nWith what they mean for a run: [events.md](../events.md).\n"]
    for event in typing.get_args(events.Event):
        parts.append(f"\n## {event.__name__}\n\n{_doc(event)}\n\n{_fields(event)}")
    return "".join(parts)


def spec_page() -> str:
    head = "# The recorded spec\n\nThe fields of `runs/RUN/spec.json`. For `outlast.toml`, see [spec.md](../spec.md).\n"
    found = [kind for kind in vars(spec).values() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
    own = [kind for kind in found if kind.__module__ == spec.__name__]
    return head + "".join(f"\n## {kind.__name__}\n\n{_doc(kind)}\n\n{_fields(kind)}" for kind in reversed(own))


def _doc(kind: type) -> str:
    return _plain(inspect.cleandoc(kind.__doc__ or ""))


def _fields(kind: type[msgspec.Struct]) -> str:
    rows = ["| field | type | default | |\n|---|---|---|---|\n"]
    remarks = remarks_of(kind)
    for field in msgspec.structs.fields(kind):
        default = "" if field.default is msgspec.NODEFAULT else _cell(f"`{_default(field.default)}`")
        rows.append(
            f"| `{field.name}` | {_cell(type_name(field.type))} | {default} | {remarks.get(field.name, '')} |\n"
        )
    return "".join(rows)


def _default(value: object) -> str:
    return f"{type(value).__name__}()" if isinstance(value, msgspec.Struct) else repr(value)


def type_name(kind: object) -> str:
    """Return the name of a type in JSON terms."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return ", ".join(f"`{one}`" for one in inner)
    if kind is typing.Any:
        return "anything"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_name(one) for one in inner)
    if origin is dict:
        return f"table of {type_name(inner[1])}"
    if origin in (tuple, list):
        return f"list of {type_name(inner[0])}"
    plain = {str: "text", int: "whole number", float: "number", bool: "true or false", type(None): "null"}
    return plain.get(kind, getattr(kind, "__name__", str(kind)).lstrip("_"))  # type: ignore[call-overload,no-any-return]


def remarks_of(kind: type) -> dict[str, str]:
    """Return field → the comment above it, for a struct and its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("outlast"):
            found |= _remarks(textwrap.dedent(inspect.getsource(base)))
    return found


def _remarks(source: str) -> dict[str, str]:
    lines = source.splitlines()
    body = typing.cast(ast.ClassDef, ast.parse(source).body[0]).body
    found: dict[str, str] = {}
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            at, argv = node.lineno - 2, []
            while lines[at].strip().startswith("#"):
                argv.insert(0, lines[at].strip().lstrip("# "))
                at -= 1
            found[node.target.id] = _cell(_plain(" ".join(argv)))
    return found


def json_page() -> str:
    """Return the page about `--json`: each command, then the types that it prints."""
    head = "# Output of --json\n\nFields may be added; existing fields keep their names and meanings.\n"
    declared = [(name, one) for name, one in all_commands() if isinstance(one, OutlastCommand)]
    types = {name: json_type(one.json) for name, one in declared if one.json}
    texts = {name: _plain(one.json_text) for name, one in declared if one.json_text}
    texts |= {name: type_name(kind) for name, kind in types.items()}
    rows = "".join(f"| `outlast {name} --json` | {_cell(text)} |\n" for name, text in sorted(texts.items()))
    parts = [f"{head}\n| command | prints |\n|---|---|\n{rows}"]
    for kind in sorted(_tables(list(types.values())), key=lambda kind: kind.__name__):
        parts.append(f"\n## {kind.__name__}\n\n{_doc(kind)}\n\n{_fields(kind)}")
    return "".join(parts)


def _tables(shapes: list[object]) -> set[type[msgspec.Struct]]:
    """Return the structs in these types, recursively."""
    found: set[type[msgspec.Struct]] = set()
    while shapes:
        shape = shapes.pop()
        shapes += typing.get_args(shape)
        if isinstance(shape, type) and issubclass(shape, msgspec.Struct) and shape not in found:
            found.add(shape)
            shapes += [field.type for field in msgspec.structs.fields(shape)]
    return found


def exit_page() -> str:
    rows = "".join(f"| {code} | {meaning} |\n" for code, meaning in errors.EXIT_CODES.items())
    tree = inspect.getdoc(errors) or ""
    head = "# Exit codes and errors\n\nWith what `outlast run` makes of them: [exit-codes.md](../exit-codes.md).\n"
    return f"{head}\n| code | meaning |\n|---|---|\n{rows}\n```text\n{tree.partition(chr(10) * 2)[2].strip()}\n```\n"


def variable_page() -> str:
    places: dict[str, set[str]] = {}
    for path in sorted((ROOT / "src" / "outlast").rglob("*.py")):
        for name in re.findall(r"\b_?OUTLAST_[A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8")):
            places.setdefault(name, set()).add(path.relative_to(ROOT / "src" / "outlast").parts[0].removesuffix(".py"))
    rows = "".join(f"| `{name}` | {', '.join(sorted(parts))} |\n" for name, parts in sorted(places.items()))
    head = "# Variables\n\nWhat they mean: [environment.md](../environment.md).\n"
    return f"{head}\n| variable | parts of the code that know it |\n|---|---|\n{rows}"


def index_page(pages: dict[str, str]) -> str:
    rows = "".join(f"| [{name}]({name}) | {text.splitlines()[0].lstrip('# ')} |\n" for name, text in pages.items())
    head = "# Reference from the code\n\nWritten by `tools/reference.py` with every build of the site.\n"
    return f"{head}\n| page | |\n|---|---|\n{rows}"


def _plain(text: str) -> str:
    """Escape text of the code as a paragraph of Markdown."""
    text = re.sub(r"\s+", " ", text).strip()
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(piece if piece.startswith("`") else re.sub(r"([*_<\[\]$])", r"\\\1", piece) for piece in pieces)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def pages() -> dict[str, str]:
    found = {
        "commands.md": command_page(),
        "record.md": spec_page(),
        "events.md": event_page(),
        "json.md": json_page(),
        "exit-codes.md": exit_page(),
        "variables.md": variable_page(),
    }
    return {"README.md": index_page(found), **found}


def main() -> None:
    PLACE.mkdir(exist_ok=True)
    for name, text in pages().items():
        path = PLACE / name
        # Do not rewrite unchanged files, so that the next build can skip them.
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
