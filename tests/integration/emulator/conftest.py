"""Fixtures of this folder; the imported modules define them."""

from tests.integration.emulator.compute import server
from tests.integration.emulator.serving import serving
from tests.support.emulator import call, endpoint, served, watching

__all__ = ["call", "endpoint", "served", "server", "serving", "watching"]
