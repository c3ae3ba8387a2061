"""Conditions of the real cloud that a server on one computer does not have by itself: effects that come late, refusals.

Every delay is a number of requests.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from outlast_gcp_emulator.delays import Delays
from outlast_gcp_emulator.errors import ApiError

GPUS = "GPUS_ALL_REGIONS"
EXTERNAL_ADDRESS, SHIELDED = "compute.vmExternalIpAccess", "compute.requireShieldedVm"
IMAGE_PROJECTS, LOCATIONS = "compute.trustedImageProjects", "gcp.resourceLocations"


@dataclass(frozen=True, kw_only=True, slots=True)
class CloudConditions:
    """The default is a kind server, as `outlast local serve` runs it."""

    # An API must be enabled, and refuses this many requests after that. None: every API is enabled.
    api_delay: int | None = None
    # How often a client must ask for the operation of `services:batchEnable` before it is done.
    enable_polls: int = 0
    # Policies that contain a new service account, and are refused because it is unknown.
    account_delay: int = 0
    # Requests of machines for a new bucket or secret that are refused, because their rights have no effect yet.
    grant_delay: int = 0
    # Lists that lack a new instance. A request with its name finds it.
    list_delay: int = 0
    # Constraints of the organisation that refuse requests with 412, by name: `compute.vmExternalIpAccess`.
    constraints: frozenset[str] = frozenset()
    # Limits of the project's quotas, by name.
    quotas: Mapping[str, int] = field(default_factory=dict)
    default_network: bool = True


# A new project of Google's, on the day on which it is set up.
REAL = CloudConditions(api_delay=1, enable_polls=2, account_delay=1, grant_delay=2, list_delay=2, quotas={GPUS: 0})


class Surroundings(Delays):
    """The conditions of an endpoint, which a test may replace at any time, and the delays that are not over."""

    def __init__(self, conditions: CloudConditions) -> None:
        super().__init__()
        self.now = conditions

    def check_grant(self, what: Hashable, *, message: str) -> None:
        """Raise ApiError while the rights of machines to a resource have no effect."""
        if self.is_late(("grant", what)):
            raise ApiError(403, "forbidden", message)

    def check_constraint(self, name: str, message: str, *, project: str) -> None:
        """Raise ApiError if a constraint of the organisation applies."""
        if name in self.now.constraints:
            text = f"Constraint constraints/{name} violated for project {project}. {message}"
            raise ApiError(412, "conditionNotMet", text)
