"""The resources that a cloud account needs: the steps that create them, one function for each cloud with an account."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from outlast.workspace import Workspace

if TYPE_CHECKING:
    from outlast.clouds.cloud import SetupStep


class AccountSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The steps, the bucket that they create, and the settings of the private network once it exists."""

    steps: Sequence[SetupStep]
    bucket: str
    network_settings: Callable[[], str]


def google_setup(
    *,
    project: str = "",
    bucket: str = "",
    location: str = "us-central1",
    only: Workspace | None = None,
    network: bool = False,
    report: Callable[[str], None],
) -> AccountSetup:
    """Return the steps for a Google Cloud project; with `only`, machines may delete those of one workspace only."""
    from outlast.clouds.gcp.client import GcpClient
    from outlast.clouds.gcp.setup import GcpSetup
    from outlast.clouds.gcp.setup_network import network_steps, settings_text

    ending = f"-{only.id[:6]}" if only is not None else ""
    plan = GcpSetup(GcpClient(project), bucket=bucket, location=location, only=ending, report=report)
    steps = [*plan.steps(), *(network_steps(plan.client, location) if network else ())]
    return AccountSetup(steps=steps, bucket=f"gs://{plan.bucket}", network_settings=settings_text)


def amazon_setup(*, region: str = "", bucket: str = "", network: bool = False) -> AccountSetup:
    """Return the steps for an AWS account."""
    from outlast.clouds.aws.client import AwsClient
    from outlast.clouds.aws.setup import AwsSetup
    from outlast.clouds.aws.setup_network import AwsNetworkSetup

    plan = AwsSetup(AwsClient(region), bucket=bucket)
    private = AwsNetworkSetup(plan.client)
    steps = [*plan.steps(), *(private.steps() if network else ())]
    return AccountSetup(steps=steps, bucket=f"s3://{plan.bucket}", network_settings=private.settings_text)
