"""Google Cloud and EC2 at once, both on this computer."""

from tests.aws.conftest import bridge, bridge_process, cloud
from tests.gcp.conftest import gcp, rehearsal, watching

__all__ = ["bridge", "bridge_process", "cloud", "gcp", "rehearsal", "watching"]
