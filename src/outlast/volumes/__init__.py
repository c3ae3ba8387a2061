"""Volumes that a team shares: made, filled, mounted, thrown away."""
