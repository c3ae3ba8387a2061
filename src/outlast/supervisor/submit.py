"""Asking for a run: check all that can be checked, store the code, write the request, and only then say `Submitted`."""

from __future__ import annotations

import getpass
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence

import outlast
from outlast.clouds.cloud import Cloud, Offer
from outlast.errors import BadRequest, NotFound, SpecError
from outlast.spec.command import script_of
from outlast.spec.names import with_company
from outlast.spec.quantity import describe_s
from outlast.spec.spec import MachineSpec, Spec
from outlast.supervisor import shared
from outlast.supervisor.afford import check_budget
from outlast.supervisor.deadline import by_policy
from outlast.supervisor.observe import needs_of, wants_on_demand
from outlast.workspace import reach
from outlast.workspace.bundle import CodeRecord, git_record, pack, store
from outlast.workspace.checkpoints import survey
from outlast.workspace.data import check_data
from outlast.workspace.events import Submitted
from outlast.workspace.standing import refuse_if_spent
from outlast.workspace.workspace import Request, Workspace


def who_am_i() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def check(
    spec: Spec, clouds: Mapping[str, Cloud], environment: Mapping[str, str], *, source: str, now: float = 0.0
) -> None:
    """Everything that is wrong and can be known before anything is launched, all at once. Raises SpecError."""
    problems = [
        f"[secrets] {name}: the variable `{variable}` is not set here"
        for name, variable in spec.secrets.items()
        if variable not in environment
    ]
    problems += check_data(spec.data)
    problems += _check_code(spec)
    problems += _check_deadline(spec, now)
    problems += _check_machine(spec, clouds)
    if problems:
        raise SpecError(problems, source=source)


def _check_deadline(spec: Spec, now: float) -> list[str]:
    limits = spec.limits
    left_s = limits.deadline_at - now if limits.deadline_at else limits.deadline_s
    if not left_s:
        return []
    if left_s <= 0:
        return [f"[limits] deadline: it passed {describe_s(-left_s)} ago"]
    if limits.work_s > left_s:
        work, left = describe_s(limits.work_s), describe_s(left_s)
        return [f"[limits] deadline: it leaves {left}, and `work` is {work}: no machine could be in time"]
    return []


def _check_code(spec: Spec) -> list[str]:
    if spec.code.git:
        return []
    if not os.path.isdir(spec.code.path):
        return [f"[code] path: there is no folder `{spec.code.path}`"]
    script = script_of(spec.command)
    if script and not os.path.exists(os.path.join(spec.code.path, script)) and "{" not in script:
        return [f"command: the script `{script}` does not exist in {os.path.abspath(spec.code.path)}"]
    return []


def _check_machine(spec: Spec, clouds: Mapping[str, Cloud]) -> list[str]:
    return [problem for name in spec.machine.clouds for problem in _check_cloud(spec, name, clouds)]


def _check_cloud(spec: Spec, name: str, clouds: Mapping[str, Cloud]) -> list[str]:
    machine, cloud = spec.machine, clouds.get(name)
    if cloud is None:
        return [f"[machine] cloud: `{name}` is not supported by this outlast; use local, gcp or aws"]
    kinds = ([True] if machine.spot else []) + ([False] if wants_on_demand(spec) else [])
    try:
        offers = [offer for spot in kinds for offer in _offers(cloud, machine, spot)]
        if by_policy(spec) and (problem := _check_prices(offers)):
            return [problem]
        if not offers:
            return [f"[machine]: no machine of `{name}` fits; ask for less, or for a range such as `8+`"]
        if problems := check_budget(spec, offers):
            return problems
        if machine.image and not _has_image(cloud, machine.image):
            return [f"[machine] image: `{name}` has no image `{machine.image}`"]
    except (BadRequest, NotFound) as problem:
        return [f"[machine]: {problem.message}" + (f"; {problem.hint}" if problem.hint else "")]
    return []


def check_purse(workspace: Workspace, cloud: Cloud, spec: Spec) -> None:
    """Raises OverLimit if the user, or the workspace, has spent what may be spent."""
    if not any(True for _ in workspace.bucket.list("limits/")):
        return
    kinds = [spot for spot in (True, False) if spot == spec.machine.spot or (not spot and spec.machine.fallback)]
    prices = [o.price_usd_per_hour for spot in kinds for o in _offers(cloud, spec.machine, spot)]
    refuse_if_spent(workspace, who=who_am_i(), hour_usd=min(prices, default=0.0), now=workspace.clock())


def _check_prices(offers: Sequence[Offer]) -> str:
    """What keeps the policy from comparing: a deadline is met on demand, and prices decide what is better."""
    for offer in offers:
        if not 0 < offer.price_usd_per_hour < math.inf:
            kind = "spot" if offer.spot else "on demand"
            return f"[limits] deadline: the price of {offer.type} in {offer.zone} ({kind}) is unknown; name other zones"
    if offers and all(offer.spot for offer in offers):
        return "[limits] deadline: no on-demand machine fits `[machine]`, and only that can be relied on to be in time"
    return ""


def _offers(cloud: Cloud, machine: MachineSpec, spot: bool) -> Sequence[Offer]:
    return cloud.offers(needs_of(machine, spot=spot, cloud=cloud.name))


def _check_workspace(workspace: Workspace, spec: Spec, environment: Mapping[str, str]) -> None:
    """Whether the machines can reach it. Raises SpecError, and UsageError when they would need a key."""
    if "://" not in workspace.url or workspace.url.startswith("memory://"):
        store = {"aws": "s3://BUCKET/NAME; `outlast setup aws`"}.get(
            spec.machine.cloud, "gs://BUCKET/NAME; `outlast setup gcp`"
        )
        raise SpecError(
            [f"[machine] cloud: machines of `{spec.machine.cloud}` cannot reach the workspace {workspace.url}"],
            hint=f"use a bucket: --workspace {store} makes one",
        )
    if any(reach.needs_key(workspace.url, name) for name in spec.machine.clouds):
        reach.key_given(workspace.url, environment)


def _has_image(cloud: Cloud, name: str) -> bool:
    """Whether it is an image, or a family that stands for one. Those of other projects are not in any listing."""
    # EC2 looked for it when it was asked for offers; there, public ones have names, too.
    return (
        cloud.name == "aws"
        or "/" in name
        or any(image.name == name or (image.family == name and not image.retired) for image in cloud.images())
    )


def submit(
    workspace: Workspace,
    clouds: Mapping[str, Cloud],
    spec: Spec,
    *,
    environment: Mapping[str, str],
    source: str = "outlast.toml",
    say: Callable[[str], None] = lambda _: None,
) -> Request:
    """The run, asked for. Nothing is launched here; whoever supervises the workspace does that."""
    spec, code = prepare(workspace, clouds, spec, environment=environment, source=source, say=say)
    return ask(workspace, clouds, spec, code, environment=environment)


def check_all(
    workspace: Workspace, spec: Spec, clouds: Mapping[str, Cloud], environment: Mapping[str, str], *, source: str
) -> Spec:
    """What `check` does, and all that only this workspace tells; what is to be asked for. Raises SpecError."""
    check(spec, clouds, environment, source=source, now=workspace.clock())
    if problems := shared.check(workspace, clouds, spec):
        raise SpecError(problems, source=source)
    spec = shared.narrowed(workspace, clouds, spec)
    check_purse(workspace, clouds[spec.machine.cloud], spec)
    if spec.machine.cloud != "local":
        _check_workspace(workspace, spec, environment)
        for name in spec.machine.clouds:
            workspace.remember_cloud(name)
    return spec


def ask(
    workspace: Workspace,
    clouds: Mapping[str, Cloud],
    spec: Spec,
    code: CodeRecord,
    *,
    environment: Mapping[str, str],
    run: str = "",
) -> Request:
    """The writing part of a submit, in the order that survives a death between any two lines.

    With a name that the caller has derived (`run`) it may be repeated: what is there already stays as it is.
    """
    version, path = outlast.__version__, _path(environment)
    request = workspace.reserve(spec, code, who=who_am_i(), version=version, path=path, run=run)
    return announce(workspace, clouds, request, environment=environment, again=bool(run))


def enlist(workspace: Workspace, run: str, spec: Spec, code: CodeRecord, *, environment: Mapping[str, str]) -> Request:
    """Write the request of a run whose name is known beforehand. Raises Exists."""
    request = Request(
        run=run,
        spec=spec,
        code=code,
        who=who_am_i(),
        submitted_at=workspace.clock(),
        version=outlast.__version__,
        path=_path(environment),
    )
    return workspace.enlist(request)


def _path(environment: Mapping[str, str]) -> str:
    """Where the submitter finds programs."""
    path = os.pathsep.join([environment.get("PATH", ""), os.path.dirname(sys.executable)])
    return path.encode("utf-8", "replace").decode()


def announce(
    workspace: Workspace,
    clouds: Mapping[str, Cloud],
    request: Request,
    *,
    environment: Mapping[str, str],
    again: bool = False,
) -> Request:
    """Say that there is such a run. Its request is written already; `again`: and it may have been said before."""
    spec = request.spec
    # The bell goes first: a run whose submit died right after `Submitted` is found by it.
    workspace.ring(request.run)
    values = {name: environment[variable] for name, variable in spec.secrets.items()}
    values |= shared.addresses(workspace, clouds, spec)
    for name in spec.machine.clouds:
        _put_secrets(workspace, clouds[name], request.run, values, environment)
    submitted = Submitted(who=request.who, at=workspace.clock(), by=request.who)
    story, nonce = workspace.story(request.run), workspace.ids()
    if again:
        story.append(submitted, nonce=nonce)  # refused if somebody has done it before
    else:
        story.demand(submitted, nonce=nonce)
    return request


def prepare(
    workspace: Workspace,
    clouds: Mapping[str, Cloud],
    spec: Spec,
    *,
    environment: Mapping[str, str],
    source: str,
    say: Callable[[str], None],
) -> tuple[Spec, CodeRecord]:
    """Check all that can be checked, and store the code: everything of a submit but the asking. What is to be asked."""
    spec = check_all(workspace, spec, clouds, environment, source=source)
    return spec, store_code(workspace, spec, say)


def _put_secrets(
    workspace: Workspace, cloud: Cloud, run: str, values: Mapping[str, str], environment: Mapping[str, str]
) -> None:
    """What the run's machines on this cloud may read, and nobody else's."""
    place = workspace.secrets_name(run)
    if values:
        cloud.put_secrets(place, values)
    if reach.needs_key(workspace.url, cloud.name):
        cloud.put_secrets(reach.key_name(place), reach.key_given(workspace.url, environment))


def store_code(workspace: Workspace, spec: Spec, say: Callable[[str], None]) -> CodeRecord:
    if spec.code.git:
        return git_record(spec.code.git, spec.code.ref)
    # What earlier runs left here is neither code nor this run's own: a checkpoint would be resumed from unasked.
    saved, names = spec.checkpoint.path, with_company(spec.checkpoint.names)
    exclude = [f"/{path}/" for path in (spec.output_path, "" if names else saved) if path not in ("", ".")]
    exclude += ["/" + os.path.normpath(os.path.join(saved, name)) for name in names]
    bundle = pack(spec.code.path, exclude=exclude, bytes_max=int(spec.code.size_max_gb * 1e9))
    for left in bundle.left_out:
        say(f"left out of the bundle: {left.path} ({left.why})")
    # Said, as a pattern may be that of a file which the program needs.
    for path in survey(os.path.join(spec.code.path, saved), names=names)[0] if names else ():
        say(f"left out of the bundle: {os.path.normpath(os.path.join(saved, path))} (a checkpoint of an earlier run)")
    return store(workspace.bucket, bundle)
