"""Google Cloud and EC2 at once, both on this computer."""

from tests.integration.aws.conftest import bridge, bridge_process, cloud
from tests.integration.gcp.conftest import gcp, rehearsal, watching

__all__ = ["bridge", "bridge_process", "cloud", "gcp", "rehearsal", "watching"]
