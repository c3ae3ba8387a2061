"""`outlast setup`: the resources that a cloud account needs before outlast runs on it; printed, or created."""

from __future__ import annotations

import click

from outlast.cli.shared.command import RESUMABLE, command, command_group
from outlast.cli.shared.terminal import find_workspace, note


@command(progress="querying the cloud", interrupt=RESUMABLE)
@click.option("--project", default="", metavar="ID", help="Project (that of your credentials).")
@click.option("--bucket", default="", metavar="NAME", help="Bucket for workspaces (PROJECT-outlast).")
@click.option("--location", default="us-central1", metavar="PLACE", help="Region of the bucket (us-central1).")
@click.option("--only", default="", metavar="WHERE", help="Let machines delete only machines of this workspace.")
@click.option("--apply", is_flag=True, help="Create everything that is missing; may be repeated.")
def gcp(project: str, bucket: str, location: str, only: str, apply: bool) -> int:
    """Prepare a Google Cloud project: APIs, bucket, service account for machines, least roles.

    Without --apply it prints equivalent gcloud commands and changes nothing.
    """
    from outlast.clouds.gcp.client import GcpClient
    from outlast.clouds.gcp.setup import GcpSetup

    ending = f"-{find_workspace(only).id[:6]}" if only else ""
    plan = GcpSetup(GcpClient(project), bucket=bucket, location=location, only=ending, report=note)
    for step in plan.steps():
        if apply:
            step.apply()
            note(f"ensured {step.what}")
        else:
            click.echo("\n".join([f"# {step.what}", *step.commands]))
    if apply:
        click.echo(f"gs://{plan.bucket}")
        note(f"ready: outlast run --cloud gcp --workspace gs://{plan.bucket}/ws -- COMMAND")
    else:
        note("nothing was changed; --apply creates all of it")
    return 0


@command(progress="querying the cloud", interrupt=RESUMABLE)
@click.option("--region", default="", metavar="NAME", help="Region (AWS_REGION).")
@click.option("--bucket", default="", metavar="NAME", help="Bucket for workspaces (outlast-ACCOUNT-REGION).")
@click.option("--apply", is_flag=True, help="Create everything that is missing; may be repeated.")
def aws(region: str, bucket: str, apply: bool) -> int:
    """Prepare an AWS account: bucket, roles with least privilege, security group.

    Without --apply it prints equivalent aws commands and changes nothing.
    """
    from outlast.clouds.aws.client import AwsClient
    from outlast.clouds.aws.setup import AwsSetup

    plan = AwsSetup(AwsClient(region), bucket=bucket)
    for step in plan.steps():
        if apply:
            step.apply()
            note(f"ensured {step.what}")
        else:
            click.echo("\n".join([f"# {step.what}", *step.commands]))
    if apply:
        click.echo(f"s3://{plan.bucket}")
        note(f"ready: outlast run --cloud aws --workspace s3://{plan.bucket}/ws -- COMMAND")
    else:
        note("nothing was changed; --apply creates all of it")
    return 0


@command_group("admin", (gcp, aws))
def setup() -> None:
    """Prepare a cloud account for outlast.

    Prints the commands that create the missing resources; with --apply it creates them.
    """
