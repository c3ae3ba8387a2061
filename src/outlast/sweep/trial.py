"""The spec of one trial: that of the sweep, with the trial's parameters in it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from outlast.spec.command import fills, is_plain
from outlast.spec.spec import ParamValue, Spec
from outlast.sweep.record import Sweep


def trial_spec(sweep: Sweep, params: Mapping[str, ParamValue]) -> Spec:
    """What the run of a trial is asked for. Its parameters are those of the run: `{name}`, flags, `OUTLAST_PARAMS`, and
    metadata of its machine."""
    return msgspec.structs.replace(sweep.spec, params={**sweep.spec.params, **params}, sweep=None)


def with_flags(spec: Spec) -> Spec:
    """The command with `--name {name}` added for what is searched, if the user left it to us: there is no `{name}` of
    any of them in it, and it is one program with its words, to which flags can be added."""
    if spec.sweep is None or not spec.sweep.flags:
        return spec
    names = list(spec.sweep.params)
    if any(fills(spec.command, name) for name in names) or not is_plain(spec.command):
        return spec
    argv = [word for name in names for word in (f"--{_flag(name)}", "{" + name + "}")]
    if isinstance(spec.command, str):
        return msgspec.structs.replace(spec, command=" ".join([spec.command, *argv]))
    return msgspec.structs.replace(spec, command=(*spec.command, *argv))


def _flag(name: str) -> str:
    """As programs of `@outlast.trainer` and most others write it."""
    return re.sub(r"[_]", "-", name)
