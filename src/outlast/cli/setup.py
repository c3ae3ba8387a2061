"""`outlast setup`: what a cloud needs before outlast runs on it; printed, and made if asked."""

from __future__ import annotations

import click

from outlast.cli.terminal import find_workspace, note


@click.group()
def setup() -> None:
    """Prepare a cloud: print what is needed, and make it with --apply."""


@setup.command()
@click.option("--project", default="", metavar="ID", help="The project; without it the one of your credentials.")
@click.option("--bucket", default="", metavar="NAME", help="The bucket for workspaces (PROJECT-outlast).")
@click.option("--location", default="us", metavar="PLACE", help="Where the bucket is: us, eu, us-central1.")
@click.option("--only", default="", metavar="WHERE", help="Machines may delete those of this workspace alone.")
@click.option("--apply", is_flag=True, help="Make what is missing. It may be repeated.")
def gcp(project: str, bucket: str, location: str, only: str, apply: bool) -> int:
    """Prepare a project of Google Cloud: APIs, a bucket, an account for the machines, the least roles.

    Without --apply it prints the commands of gcloud that do the same, and changes nothing.
    """
    from outlast.clouds.gcp.client import GcpClient
    from outlast.clouds.gcp.setup import GcpSetup

    ending = f"-{find_workspace(only).id[:6]}" if only else ""
    plan = GcpSetup(GcpClient(project), bucket=bucket, location=location, only=ending)
    for part in plan.parts():
        if apply:
            part.make()
            note(f"made sure of {part.what}")
        else:
            click.echo(f"# {part.what}\n{part.command}")
    if apply:
        click.echo(f"gs://{plan.bucket}")
        note(f"ready: outlast run --cloud gcp --workspace gs://{plan.bucket}/ws -- COMMAND")
    else:
        note("nothing was changed; --apply makes all of it")
    return 0


@setup.command()
@click.option("--region", default="", metavar="NAME", help="The region; without it the one of AWS_REGION.")
@click.option("--bucket", default="", metavar="NAME", help="The bucket for workspaces (outlast-ACCOUNT-REGION).")
@click.option("--apply", is_flag=True, help="Make what is missing. It may be repeated.")
def aws(region: str, bucket: str, apply: bool) -> int:
    """Prepare an account of AWS: a bucket, roles with the least rights, a security group.

    Without --apply it prints the commands of aws that do the same, and changes nothing.
    """
    from outlast.clouds.aws.client import AwsClient
    from outlast.clouds.aws.setup import AwsSetup

    plan = AwsSetup(AwsClient(region), bucket=bucket)
    for part in plan.parts():
        if apply:
            part.make()
            note(f"made sure of {part.what}")
        else:
            click.echo("\n".join([f"# {part.what}", *part.commands]))
    if apply:
        click.echo(f"s3://{plan.bucket}")
        note(f"ready: outlast run --cloud aws --workspace s3://{plan.bucket}/ws -- COMMAND")
    else:
        note("nothing was changed; --apply makes all of it")
    return 0
