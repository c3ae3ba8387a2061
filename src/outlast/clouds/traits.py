"""Traits of clouds: the facts about a cloud that the rest of the program asks for instead of its name.

A leaf module: pure data, no SDK, importable from everywhere. Behaviour is in the cloud's class.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from outlast.errors import CloudError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# Clouds of other distributions are found through this entry point group: NAME = MODULE:CLASS.
GROUP = "outlast.clouds"
# The cloud of a spec, a machine or a command that names none.
DEFAULT_CLOUD = "local"


class CloudTraits(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about one cloud. The defaults suit a public cloud."""

    # Machines are other computers: a workspace in a folder of this one is out of their reach.
    remote: bool = True
    # Machines see files and software of this computer as `Boot.host` lists them, and need no installation of outlast.
    shares_host_files: bool = False
    # Machines cost nothing: their prices only make reports realistic.
    free: bool = False
    # A listing right after a call shows its effect, so one empty listing proves that nothing is left.
    consistent_listings: bool = False
    # Launches several machines at once, all or none (`cloud.LaunchesTogether`): a run may have several nodes.
    distributed: bool = False
    # Machines of different regions have no network in common, and reach no database of another region.
    regional_network: bool = False
    # `offers` resolves the image, including public images that `images` does not list.
    offers_check_image: bool = False

    # Longest time from the launch to the agent's first heartbeat, and from one heartbeat to the next.
    boot_s: float = 900.0
    silence_s: float = 90.0
    # Time to save at a limit or before a move, and time for the agent's last report after it.
    grace_s: float = 120.0
    report_s: float = 30.0
    # Assumed time from the placement of an attempt to its start, until starts were measured.
    start_s: float = 180.0
    # Work lost because a dead machine is noticed late.
    unnoticed_s: float = 90.0
    # Longest time from `pending` to `running`, and from `running` until ssh answers.
    pending_s: float = 600.0
    ssh_s: float = 300.0
    # Longest time until the head of a cluster is ready.
    cluster_ready_s: float = 900.0

    # Pauses: between two states of a machine, two decisions of the deadline policy, two rounds of `machine keep`, and
    # after the first refused start.
    poll_s: float = 2.0
    decision_s: float = 30.0
    keepalive_poll_s: float = 10.0
    refused_s: float = 15.0

    # Of a run that states nothing else: enough to install and train with a deep-learning framework.
    disk_gb: float = 50.0
    gpu_disk_gb: float = 100.0
    cpus: int = 2
    memory_gb: float = 8.0
    gpu_cpus: int = 4
    gpu_memory_gb: float = 15.0

    # URL scheme of the cloud's own object store, which its machines use without a key; empty: it has none.
    store_scheme: str = ""
    # List price of traffic to the internet; 0: unknown or free.
    egress_usd_per_gb: float = 0.0
    # List price of a GB for a month in the cheapest regions of its object store; 0: unknown or free.
    storage_usd_per_gb: float = 0.0
    # The smallest machine type that runs all day, for a supervisor; empty: no machine of it can supervise.
    supervisor_type: str = ""
    # A regular expression for names of zones and regions that no other cloud uses; empty: there is none.
    zone_pattern: str = ""

    # The extra of our distribution that calls this cloud's API, and the modules that it brings.
    extra: str = ""
    modules: tuple[str, ...] = ()
    # Environment variables that configure it; none of them is a secret. A cloud supervisor inherits them.
    settings: tuple[str, ...] = ()
    # Signs that this computer can use it: environment variables, and files with credentials.
    signs: tuple[str, ...] = ()
    sign_files: tuple[str, ...] = ()
    # The command that prepares an account and creates a bucket; empty: there is none.
    setup_command: str = ""

    @property
    def store_url(self) -> str:
        """The form of a workspace URL in the cloud's own store, for messages."""
        return f"{self.store_scheme or 'gs'}://BUCKET/NAME"


BUILT_IN: Mapping[str, CloudTraits] = {
    "local": CloudTraits(
        remote=False,
        shares_host_files=True,
        free=True,
        consistent_listings=True,
        distributed=True,
        disk_gb=10.0,
        gpu_disk_gb=10.0,
        cpus=0,
        memory_gb=0.0,
        gpu_cpus=0,
        gpu_memory_gb=0.0,
        boot_s=60.0,
        silence_s=15.0,
        grace_s=20.0,
        report_s=5.0,
        start_s=2.0,
        unnoticed_s=2.0,
        pending_s=60.0,
        ssh_s=30.0,
        # The head's monitor starts Ray up to three times, two minutes each on a busy computer.
        cluster_ready_s=420.0,
        poll_s=0.05,
        decision_s=1.0,
        keepalive_poll_s=0.5,
        refused_s=0.5,
    ),
    "gcp": CloudTraits(
        offers_check_image=True,
        distributed=True,
        store_scheme="gs",
        egress_usd_per_gb=0.12,
        storage_usd_per_gb=0.020,
        supervisor_type="e2-micro",
        extra="gcp",
        modules=("google.auth", "urllib3"),
        settings=("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT", "OUTLAST_GCP_SERVICE_ACCOUNT", "OUTLAST_NETWORKS"),
        signs=("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT", "GOOGLE_APPLICATION_CREDENTIALS"),
        sign_files=("~/.config/gcloud/application_default_credentials.json",),
        setup_command="outlast setup gcp",
    ),
    "aws": CloudTraits(
        distributed=True,
        regional_network=True,
        offers_check_image=True,
        store_scheme="s3",
        egress_usd_per_gb=0.09,
        storage_usd_per_gb=0.023,
        supervisor_type="t3.micro",
        zone_pattern=r"[a-z]{2}(-[a-z]+)+-\d+[a-z]?",
        extra="aws",
        modules=("boto3",),
        settings=("AWS_REGION", "AWS_DEFAULT_REGION", "OUTLAST_AWS_INSTANCE_PROFILE", "OUTLAST_NETWORKS"),
        signs=("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SHARED_CREDENTIALS_FILE"),
        sign_files=("~/.aws/credentials", "~/.aws/config"),
        setup_command="outlast setup aws",
    ),
}


def is_known(name: str) -> bool:
    """Return whether this installation has that cloud. Reads entry points only for names that are not built in."""
    return name in BUILT_IN or name in _entry_points()


def known_clouds() -> tuple[str, ...]:
    """Return the names of all clouds of this installation, the built-in ones first. Reads entry points."""
    return (*BUILT_IN, *sorted(_entry_points()))


def traits_of(name: str) -> CloudTraits:
    """Return the traits of a cloud; the defaults for a cloud that is not installed here. Raises CloudError."""
    found = BUILT_IN.get(name)
    return found if found is not None else _plugin_traits(name)


def in_sight(name: str, environment: Mapping[str, str]) -> bool:
    """Return whether this computer seems to have credentials or a project of a cloud. Sends no request."""
    traits = traits_of(name)
    files = map(os.path.expanduser, traits.sign_files)
    return any(environment.get(variable) for variable in traits.signs) or any(map(os.path.exists, files))


def store_owner(scheme: str) -> str:
    """Return the built-in cloud whose object store has this URL scheme; empty if none has."""
    return next((name for name, traits in BUILT_IN.items() if scheme and traits.store_scheme == scheme), "")


def plugin(name: str) -> Any:
    """Return the class of another distribution's cloud. Raises KeyError, and CloudError if it cannot be imported."""
    entry = _entry_points()[name]
    try:
        return entry.load()
    except (ImportError, AttributeError) as problem:
        hint = f"update or uninstall the distribution that provides `{entry.value}`"
        raise CloudError(f"cannot load the cloud `{name}`: {problem!r}", hint=hint) from problem


@cache
def _plugin_traits(name: str) -> CloudTraits:
    if name not in _entry_points():
        return CloudTraits()
    traits: CloudTraits = plugin(name).traits
    return traits


@cache
def _entry_points() -> dict[str, EntryPoint]:
    # Reading them takes milliseconds, which most commands must not spend.
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=GROUP) if entry.name not in BUILT_IN}
