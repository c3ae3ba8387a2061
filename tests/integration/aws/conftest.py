"""Fixtures of this folder; `tests/support/aws.py` defines them."""

from tests.support.aws import bridge, bridge_process, cloud

__all__ = ["bridge", "bridge_process", "cloud"]
