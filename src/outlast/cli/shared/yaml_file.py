"""YAML files of other tools, read with limits on size and aliases."""

from __future__ import annotations

from typing import Any

from outlast.cli.shared.project import unreadable
from outlast.errors import SpecError, UsageError
from outlast.extras import install_hint

# Aliases (`*name`) let a small file expand to more values than fit into memory.
_NODES_MAX = 100_000
_BYTES_MAX = 4_000_000


def read_yaml(path: str) -> list[Any]:
    """Return the documents of the file. Raises UsageError, SpecError."""
    try:
        import yaml
    except ImportError as problem:
        raise UsageError(
            "reading YAML needs the package PyYAML, which is not installed", hint=install_hint("outlast[yaml]")
        ) from problem
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_BYTES_MAX + 1)
    except FileNotFoundError as problem:
        raise UsageError(f"no such file: `{path}`", hint="name the YAML of your task or cluster") from problem
    except (OSError, UnicodeDecodeError) as problem:
        raise SpecError([unreadable(problem)], source=path, hint="name the YAML of your task or cluster") from problem
    if len(text) > _BYTES_MAX:
        raise SpecError(["is larger than 4 MB"], source=path, hint="is it the right file?")
    try:
        for node in yaml.compose_all(text, Loader=yaml.SafeLoader):
            if _size(yaml, node) > _NODES_MAX:
                why = f"expands to more than {_NODES_MAX} values through its aliases"
                raise SpecError([why], source=path, hint="write it without `*` and `&`")
        return list(yaml.safe_load_all(text))
    except (yaml.YAMLError, ValueError) as problem:
        why = f"invalid YAML: {' '.join(str(problem).split())}"
        raise SpecError([why], source=path, hint="nothing was done; correct the file") from problem
    except RecursionError as problem:
        raise SpecError(["is nested too deeply"], source=path) from problem


def _size(yaml: Any, root: Any) -> int:
    """Count the values of a document with its aliases expanded; stops above the limit, as aliases may be recursive."""
    count, left = 0, [root]
    while left and count <= _NODES_MAX:
        node = left.pop()
        count += 1
        if isinstance(node, yaml.MappingNode):
            left += [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            left += node.value
    return count
