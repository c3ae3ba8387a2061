"""Google Cloud and EC2 at once, both on this computer."""

from tests.support.aws import bridge, bridge_process, cloud
from tests.support.gcp import gcp, rehearsal, watching

__all__ = ["bridge", "bridge_process", "cloud", "gcp", "rehearsal", "watching"]
