"""Runs with a crash at every point."""
