"""The conversion of a torchrun command line to an `outlast.toml`. No IO.

The number of nodes goes to `[machine] nodes`. Options by which torchrun finds the other nodes are left out: outlast
sets them on each machine.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

from outlast.spec.convert import Findings, shown
from outlast.spec.fields import NODES_MAX

_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_PYTHON = re.compile(r"(?:.*/)?python[0-9.]*")
# Options that depend on the machine, or name the place where the nodes meet; the first has no value.
_PLACES = (
    *("standalone", "node_rank", "master_addr", "master_port", "local_addr"),
    *("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf"),
)
# Other options without a value, after which the script may follow.
_FLAGS = ("module", "no_python", "run_path", "use_env", "virtual_local_rank")
_SHORT = {"m": "module", "r": "redirects", "t": "tee"}
_NUMBER = re.compile(r"(\d+)(?::(\d+))?")


def is_command(text: str) -> bool:
    """Return whether a text is a command line of torchrun."""
    try:
        argv = shlex.split(text)
    except ValueError:
        return False
    return _launcher(argv) > 0


def from_torchrun(text: str, *, name: str) -> tuple[dict[str, Any], Findings]:
    """Return the table and the findings. Raises SpecError."""
    findings, argv = Findings(), shlex.split(text)
    count = _launcher(argv)
    launcher, rest = argv[:count], argv[count:]
    kept: list[str] = []
    nodes: int | str = 1
    while rest and rest[0].startswith("-"):
        words, option, value, rest = _next_option(rest)
        if option == "nnodes":
            nodes = _nodes(value, findings)
        elif option in _PLACES:
            findings.left_out.append(f"--{option.replace('_', '-')}: outlast sets it on each machine")
        else:
            kept += words
            if option == "nproc_per_node" and value.isdigit() and int(value) > 1:
                findings.otherwise.append(f"--nproc-per-node: set `[machine] gpu`, such as `A100:{value}`")
    if not rest:
        findings.problems.append("the command line names no script")
    findings.refuse(source="torchrun", hint="pass the whole line: `torchrun --nnodes 2 train.py`")
    if nodes == 1:
        findings.otherwise.append("--nnodes: it is 1, so the run has one machine")
    machine = {"machine": {"nodes": nodes}} if nodes != 1 else {}
    return {"name": name, "command": shlex.join([*launcher, *kept, *rest]), **machine}, findings


def _launcher(argv: list[str]) -> int:
    """Return the number of words that start torchrun; 0 for another command."""
    if argv and argv[0].rpartition("/")[2] == "torchrun":
        return 1
    if len(argv) > 2 and _PYTHON.fullmatch(argv[0]) and argv[1] == "-m" and argv[2] in _MODULES:
        return 3
    return 0


def _next_option(argv: list[str]) -> tuple[list[str], str, str, list[str]]:
    """Return the words of the first option, its name and value, and the words that follow it."""
    name, equals, value = argv[0].partition("=")
    option = name.lstrip("-").replace("-", "_")
    option = _SHORT.get(option, option)
    if equals or option == "standalone" or option in _FLAGS:
        return argv[:1], option, value, argv[1:]
    return argv[:2], option, argv[1] if len(argv) > 1 else "", argv[2:]


def _nodes(value: str, findings: Findings) -> int | str:
    """Return the number of nodes, or their range."""
    match = _NUMBER.fullmatch(value)
    if match is None:
        findings.problems.append(
            f"--nnodes: expected a number such as `4`, or a range such as `2:4`, got {shown(value)}"
        )
        return 1
    least, most = int(match[1]), int(match[2] or match[1])
    if not 1 <= least <= most <= NODES_MAX:
        findings.problems.append(f"--nnodes: expected at most {NODES_MAX} nodes, got {shown(value)}")
        return 1
    if least == most:
        return most
    if least == 1:
        findings.otherwise.append(
            f"--nnodes: `{value}` becomes `2..{most}`, because a distributed run has at least 2 machines"
        )
    return f"{max(2, least)}..{most}" if most > 2 else most
