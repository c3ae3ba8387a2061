"""The spec of one trial: the spec of the sweep with the trial's parameters. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from outlast.spec.command import fills, is_plain
from outlast.spec.spec import ParamValue, Spec
from outlast.sweep.record import Sweep


def trial_spec(sweep: Sweep, params: Mapping[str, ParamValue]) -> Spec:
    """Return the spec of a trial's run. It passes parameters as any run does: `{name}`, flags, `OUTLAST_PARAMS`."""
    return msgspec.structs.replace(sweep.spec, params={**sweep.spec.params, **params}, sweep=None)


def with_flags(spec: Spec) -> Spec:
    """Append `--name {name}` to the command for each searched parameter.

    A command that contains any of these `{name}`, or to which no flag can be appended, stays as it is.
    """
    if spec.sweep is None or not spec.sweep.flags:
        return spec
    names = list(spec.sweep.params)
    if any(fills(spec.command, name) for name in names) or not is_plain(spec.command):
        return spec
    argv = [part for name in names for part in (f"--{name.replace('_', '-')}", "{" + name + "}")]
    if isinstance(spec.command, str):
        return msgspec.structs.replace(spec, command=" ".join([spec.command, *argv]))
    return msgspec.structs.replace(spec, command=(*spec.command, *argv))
