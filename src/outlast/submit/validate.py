"""Checks before submission: everything that can be known to be wrong before anything is stored or launched."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence

import msgspec

from outlast.billing.budget_check import check_budget
from outlast.clouds.cloud import Cloud, Offer, why_missing
from outlast.clouds.location import with_location
from outlast.clouds.registry import enable
from outlast.clouds.traits import known_clouds, traits_of
from outlast.code.bundle import CodeRecord, code_key
from outlast.errors import BadRequest, Missing, NoSuchStore, NotFound, SpecError
from outlast.records.record import PHASE_TEXT
from outlast.records.resources import ResourceRecords
from outlast.runs.data import check_data
from outlast.spec.command import script_of
from outlast.spec.quantity import describe_s
from outlast.spec.spec import CodeSpec, Spec
from outlast.store import access
from outlast.user import current_user
from outlast.volumes import mounts
from outlast.workspace import Workspace


def validate(
    workspace: Workspace, clouds: Mapping[str, Cloud], spec: Spec, *, environment: Mapping[str, str], source: str
) -> Spec:
    """Check a spec against its clouds and its workspace; return it, restricted to zones that reach its volumes.

    Raises SpecError with all problems, OverLimit, and UsageError if machines need a key that is not set.
    """
    spec = with_location(spec, workspace.url, clouds)
    validate_spec(spec, clouds, environment, source=source, now=workspace.clock())
    problems = _check_databases(workspace, spec)
    spec = _in_one_region(workspace, clouds, spec)
    if spec.volumes:
        volumes = ResourceRecords(workspace, "volume")
        problems = mounts.check(volumes, clouds, spec) + problems
    if problems:
        raise SpecError(problems, source=source)
    if spec.volumes:
        spec = mounts.narrowed(volumes, clouds, spec)
    check_spending_limits(workspace, clouds[spec.machine.cloud], spec)
    _check_workspace(workspace, spec, clouds, environment)
    for name in spec.machine.clouds:
        workspace.remember_cloud(name)
        enable(clouds, name)
    return spec


def _in_one_region(workspace: Workspace, clouds: Mapping[str, Cloud], spec: Spec) -> Spec:
    """Return the spec with the zones of one region, if its machines must reach others or a database there.

    Runs of a group are submitted one by one, so the region must not depend on prices: the one of the database, else the
    first of `zones`, else the bucket's, else the first by name that has a matching machine.
    """
    machine, name = spec.machine, spec.machine.cloud
    if not traits_of(name).regional_network or not (spec.member or spec.databases) or machine.other_clouds:
        return spec
    offers = _offers(clouds[name], spec)
    records = ResourceRecords(workspace, "database")
    found = (records.find(one) for one in spec.databases.values())
    wanted = [record.zone for record in found if record] + [*machine.zones, machine.near]

    def rank(region: str) -> tuple[int, str]:
        fitting = (n for n, place in enumerate(wanted) if place and place.startswith(region))
        return next(fitting, len(wanted)), region

    region = min({offer.region for offer in offers}, key=rank, default="")
    zones = tuple(sorted({offer.zone for offer in offers if offer.region == region}))
    return msgspec.structs.replace(spec, machine=msgspec.structs.replace(machine, zones=zones)) if zones else spec


def validate_spec(
    spec: Spec, clouds: Mapping[str, Cloud], environment: Mapping[str, str], *, source: str, now: float = 0.0
) -> None:
    """Run the checks that need no workspace. Raises SpecError with all problems."""
    problems = [
        f"[secrets] {name}: environment variable `{variable}` is not set; export it before you submit"
        for name, variable in spec.secrets.items()
        if variable not in environment
    ]
    problems += check_data(spec.data)
    problems += _check_code(spec)
    problems += _check_deadline(spec, now)
    problems += [problem for name in spec.machine.clouds for problem in _check_cloud(spec, name, clouds)]
    if problems:
        raise SpecError(problems, source=source)


def problems_of_stored(
    workspace: Workspace, clouds: Mapping[str, Cloud], spec: Spec, code: CodeRecord, environment: Mapping[str, str]
) -> list[str]:
    """Return why a recorded run cannot be submitted again: its code, its secrets or its machines are gone."""
    problems = []
    if code.kind == "bundle":
        try:
            workspace.bucket.head(code_key(code.sha256))
        except Missing:
            problems.append(f"its code ({code_key(code.sha256)}) is not in the workspace any more")
    # The code comes from the workspace or from a commit: the folder that it was packed from need not exist.
    stored = msgspec.structs.replace(spec, code=CodeSpec(git=spec.code.git or "stored", ref=spec.code.ref))
    try:
        validate_spec(stored, clouds, environment, source="", now=workspace.clock())
    except SpecError as problem:
        problems += problem.problems
    return problems


def check_spending_limits(workspace: Workspace, cloud: Cloud, spec: Spec) -> None:
    """Check the limits of the user and of the workspace. Raises OverLimit if too little is left for one hour."""
    if not any(True for _ in workspace.bucket.list("limits/")):
        return
    hour_usd = min((offer.price_usd_per_hour for offer in _offers(cloud, spec)), default=0.0)
    check_budget(workspace, who=current_user(), hour_usd=hour_usd, now=workspace.clock())


def check_cost_limit(spec: Spec, offers: Sequence[Offer]) -> list[str]:
    """Return why `[limits] cost_usd` cannot be enforced, or pays for less than an hour, with these offers."""
    limit_usd = spec.limits.cost_usd
    if not limit_usd or not offers:
        return []
    unknown = [offer for offer in offers if offer.price_usd_per_hour <= 0]
    if unknown:
        names = ", ".join(sorted({f"`{offer.type}`" for offer in unknown})[:4])
        return [
            f"[limits] cost_usd: the price of {names} on {spec.machine.cloud} is unknown, so the limit cannot be "
            "enforced; choose another machine type, or leave out `cost_usd`"
        ]
    cheapest = min(offers, key=lambda offer: offer.price_usd_per_hour)
    if limit_usd < cheapest.price_usd_per_hour:
        return [
            f"[limits] cost_usd: ${limit_usd:g} pays for less than an hour of the cheapest matching machine "
            f"(`{cheapest.type}` in {cheapest.zone}: ${cheapest.price_usd_per_hour:.4g}/h); see `outlast prices`"
        ]
    return []


def _check_deadline(spec: Spec, now: float) -> list[str]:
    limits = spec.limits
    left_s = limits.deadline_at - now if limits.deadline_at else limits.deadline_s
    if not left_s:
        return []
    if left_s <= 0:
        return [f"[limits] deadline: passed {describe_s(-left_s)} ago; choose a later one"]
    if limits.work_s > left_s:
        work, left = describe_s(limits.work_s), describe_s(left_s)
        return [
            f"[limits] deadline: cannot be met: {left} are left, and `work` is {work}; "
            "choose a later deadline, or correct `work`"
        ]
    return []


def _check_code(spec: Spec) -> list[str]:
    if spec.code.git:
        return []
    if not os.path.isdir(spec.code.path):
        return [f"[code] path: folder `{spec.code.path}` does not exist"]
    script = script_of(spec.command)
    if script and not os.path.exists(os.path.join(spec.code.path, script)) and "{" not in script:
        return [f"command: the script `{script}` does not exist in {os.path.abspath(spec.code.path)}"]
    return []


def _check_cloud(spec: Spec, name: str, clouds: Mapping[str, Cloud]) -> list[str]:
    machine, cloud = spec.machine, clouds.get(name)
    if cloud is None:
        return [f"[machine] cloud: unknown cloud `{name}`; use one of {', '.join(known_clouds())}"]
    if machine.nodes > 1 and not cloud.traits.distributed:
        able = " or ".join(one for one in known_clouds() if traits_of(one).distributed)
        return [f"[machine] nodes: `{name}` cannot launch several machines for one run; use {able}, or a group of runs"]
    try:
        offers = _offers(cloud, spec)
        if spec.uses_policy and (problem := _check_prices(offers)):
            return [problem]
        if not offers:
            return [
                f"[machine]: no machine type of `{name}` meets the requirements; "
                'request less, or a range such as `cpus = "8+"`'
            ]
        if problems := check_cost_limit(spec, offers):
            return problems
        if machine.image and not _has_image(cloud, machine.image):
            return [f"[machine] image: `{name}` has no image `{machine.image}`; see `outlast image list`"]
    except (BadRequest, NotFound) as problem:
        return [f"[machine]: {problem.message}" + (f"; {problem.hint}" if problem.hint else "")]
    return []


def _check_prices(offers: Sequence[Offer]) -> str:
    """Return why the deadline policy cannot compare the offers; empty if it can."""
    for offer in offers:
        if not 0 < offer.price_usd_per_hour < math.inf:
            kind = "spot" if offer.spot else "on demand"
            return (
                f"[limits] deadline: the price of {offer.type} in {offer.zone} ({kind}) is unknown; "
                "choose other zones with `[machine] zones`"
            )
    if offers and all(offer.spot for offer in offers):
        return (
            "[limits] deadline: no on-demand machine meets `[machine]`, and spot machines alone cannot "
            "guarantee a deadline; request less, or leave out `deadline`"
        )
    return ""


def _offers(cloud: Cloud, spec: Spec) -> list[Offer]:
    """Return the offers of a cloud of every kind (spot, on demand) that the run may use."""
    kinds = ([True] if spec.machine.spot else []) + ([False] if spec.uses_on_demand else [])
    return [offer for spot in kinds for offer in cloud.offers(spec.machine.needs_on(cloud.name, spot=spot))]


def _check_databases(workspace: Workspace, spec: Spec) -> list[str]:
    problems = []
    records = ResourceRecords(workspace, "database")
    for variable, name in spec.databases.items():
        try:
            record = records.get(name)
        except NoSuchStore as problem:
            problems.append(f"[databases] {variable}: {problem.message}; {problem.hint}")
            continue
        if record.phase != "ready":
            problems.append(f"[databases] {variable}: database `{name}` {PHASE_TEXT[record.phase]}")
        elif record.cloud != spec.machine.cloud:
            problems.append(
                f"[databases] {variable}: database `{name}` is on {record.cloud} and cannot be reached from machines "
                f'on {spec.machine.cloud}; choose `[machine] cloud = "{record.cloud}"` or another database'
            )
    return problems


def _check_workspace(
    workspace: Workspace, spec: Spec, clouds: Mapping[str, Cloud], environment: Mapping[str, str]
) -> None:
    """Check that the machines can reach the workspace. Raises SpecError, or UsageError if they need a key."""
    near = not workspace.store.network
    traits = traits_of(spec.machine.cloud)
    if near and traits.remote:
        creates = f"; `{traits.setup_command}` creates one" if traits.setup_command else ""
        raise SpecError(
            [f"[machine] cloud: machines of `{spec.machine.cloud}` cannot reach the workspace {workspace.url}"],
            hint=f"use a bucket: --workspace {traits.store_url}{creates}",
        )
    for name in spec.machine.clouds:
        if access.needs_key(workspace.url, name, environment):
            access.key_given(workspace.url, name, environment)
        offline = why_missing(clouds[name], "internet")
        if offline and not near and not _on_loopback(workspace.url, environment):
            why = f"[machine] cloud: machines of `{name}` have no internet here, and cannot reach {workspace.url}"
            raise SpecError([why], hint="use a folder as the workspace, or set OUTLAST_LOCAL_MODE to another mode")


def _on_loopback(url: str, environment: Mapping[str, str]) -> bool:
    return any(access.loopback_port(address) for address in access.metadata(url, environment).values())


def _has_image(cloud: Cloud, name: str) -> bool:
    """Return whether an image or an image family of this name exists. Images of other projects cannot be listed."""
    return (
        cloud.traits.offers_check_image
        or "/" in name
        or any(image.name == name or (image.family == name and not image.retired) for image in cloud.images())
    )
