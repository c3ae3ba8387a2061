"""`outlast setup`: the resources that a cloud account needs before outlast runs on it; printed, or created."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from outlast.cli.shared.command import RESUMABLE, command, command_group
from outlast.cli.shared.terminal import find_workspace, note

if TYPE_CHECKING:
    from outlast.app.types import SetupStep


@command(progress="querying the cloud", interrupt=RESUMABLE)
@click.option("--project", default="", metavar="ID", help="Project (that of your credentials).")
@click.option("--bucket", default="", metavar="NAME", help="Bucket for workspaces (PROJECT-outlast).")
@click.option("--location", default="us-central1", metavar="PLACE", help="Region of the bucket (us-central1).")
@click.option("--only", default="", metavar="WHERE", help="Let machines delete only machines of this workspace.")
@click.option("--network", is_flag=True, help="Also create a private network with Cloud NAT, in the bucket's region.")
@click.option("--apply", is_flag=True, help="Create everything that is missing; may be repeated.")
def gcp(project: str, bucket: str, location: str, only: str, network: bool, apply: bool) -> int:
    """Prepare a Google Cloud project: APIs, bucket, service account for machines, least roles.

    Without --apply it prints equivalent gcloud commands and changes nothing.
    """
    from outlast.app.account_setup import google_setup

    plan = google_setup(
        project=project,
        bucket=bucket,
        location=location,
        only=find_workspace(only) if only else None,
        network=network,
        report=note,
    )
    code = _carry_out(plan.steps, plan.bucket, cloud=str(gcp.name), apply=apply)
    return _print_network(plan.network_settings(), code) if network else code


@command(progress="querying the cloud", interrupt=RESUMABLE)
@click.option("--region", default="", metavar="NAME", help="Region (AWS_REGION).")
@click.option("--bucket", default="", metavar="NAME", help="Bucket for workspaces (outlast-ACCOUNT-REGION).")
@click.option("--network", is_flag=True, help="Also create a VPC with a subnet in each zone and a gateway to S3.")
@click.option("--apply", is_flag=True, help="Create everything that is missing; may be repeated.")
def aws(region: str, bucket: str, network: bool, apply: bool) -> int:
    """Prepare an AWS account: bucket, roles with least privilege, security group.

    Without --apply it prints equivalent aws commands and changes nothing.
    """
    from outlast.app.account_setup import amazon_setup

    plan = amazon_setup(region=region, bucket=bucket, network=network)
    code = _carry_out(plan.steps, plan.bucket, cloud=str(aws.name), apply=apply)
    return _print_network(plan.network_settings(), code) if network and apply else code


def _verify_dry(url: str, cloud: str) -> None:
    """Run the steps of `outlast verify` that cost nothing; a failed one does not undo the set-up."""
    from outlast.cli.verify import run_dry

    note("verifying the set-up; nothing is launched")
    if run_dry(cloud, url, done=lambda one: note(f"  {one.state:<8}{one.step}: {one.text}")):
        note(f"`outlast verify --cloud {cloud}` also proves it with machines, for cents")


def _print_network(settings: str, code: int) -> int:
    from outlast.app.user_config import config_path

    note(f"to use the network, add to {config_path(os.environ)}:\n{settings}")
    return code


def _carry_out(steps: Iterable[SetupStep], url: str, *, cloud: str, apply: bool) -> int:
    for step in steps:
        if apply:
            step.apply()
            note(f"ensured {step.what}")
        else:
            click.echo("\n".join([f"# {step.what}", *step.commands]))
    if apply:
        click.echo(url)
        _verify_dry(url, cloud)
        note(f"ready: outlast run --cloud {cloud} --workspace {url}/ws -- COMMAND")
    else:
        note("nothing was changed; --apply creates all of it")
    return 0


@command_group("admin", (gcp, aws))
def setup() -> None:
    """Prepare a cloud account for outlast.

    Prints the commands that create the missing resources; with --apply it creates them.
    """
