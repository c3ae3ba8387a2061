"""`outlast volume list` and `show`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from outlast.app.volumes import volume_details
from outlast.cli.shared.command import READ_ONLY, command
from outlast.cli.shared.options import clouds, json_option, workspace_option
from outlast.cli.shared.resources import list_resources, print_json, resource_records, volume_argument
from outlast.cli.shared.terminal import find_workspace, money

if TYPE_CHECKING:
    from outlast.app.types import ResourceRecord, ResourceRecords, Volume


@command("list", progress="querying the clouds", interrupt=READ_ONLY, json="list[ResourceRow]")
@json_option
@workspace_option
def list_command(as_json: bool, workspace_url: str) -> int:
    """List the volumes of this workspace, with their monthly cost."""
    records = resource_records(workspace_url, "volume")

    def cells(h: ResourceRecord, _: Volume | None, state: str) -> list[str]:
        return [h.name, h.cloud, h.zone or "all", f"{h.size_gb:g} GB", state, money(h.usd_per_month), h.who]

    header = ["NAME", "CLOUD", "ZONE", "SIZE", "STATE", "A MONTH", "WHO"]
    return list_resources(records, lambda one: _status(records, one), cells, header=header, as_json=as_json)


def _status(records: ResourceRecords, record: ResourceRecord) -> tuple[Volume | None, str, str]:
    from outlast.app.resource_status import volume_status

    return volume_status(clouds(records.workspace), records, record)


@command(progress="querying the cloud", interrupt=READ_ONLY, json="VolumeShown")
@volume_argument
@json_option
@workspace_option
def show(name: str, as_json: bool, workspace_url: str) -> int:
    """Show the volume NAME: size, usage, cost, users, and its mount points on this computer."""
    import msgspec

    details = volume_details(find_workspace(workspace_url), name)
    record, found, state, why = details.record, details.found, details.state, details.why
    runs, here = details.runs, details.mounts
    if as_json:
        data = msgspec.to_builtins(record) | {"state": state, "why": why, "runs": runs}
        data |= {"mounted": msgspec.to_builtins(here)} | ({"volume": msgspec.to_builtins(found)} if found else {})
        print_json(data)
        return 0
    lines = [f"{name}: {record.size_gb:g} GB on {record.cloud}, {state}" + (f" ({why})" if why else "")]
    if found is not None and found.used_gb is not None:
        lines.append(f"  used      {found.used_gb:.3f} GB")
    lines += [
        f"  from      {', '.join(record.zones) or 'every zone'}",
        f"  mounts    {record.source}",
    ]
    lines += [f"  cost      {money(record.usd_per_month)} a month", f"  owner     {record.who}"]
    lines += [f"  used by   {', '.join(runs) or 'no run'}"]
    lines += [f"  here      {one.path} ({one.how}{', ' + one.machine if one.machine else ''})" for one in here]
    click.echo("\n".join(lines))
    return 0
