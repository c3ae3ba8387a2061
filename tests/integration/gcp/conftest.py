"""Fixtures of this folder; `tests/support/gcp.py` defines them."""

from tests.support.gcp import _as_google_describes_it, gcp, rehearsal, watching

__all__ = ["_as_google_describes_it", "gcp", "rehearsal", "watching"]
