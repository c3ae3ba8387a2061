"""Databases that a team shares: made, opened for people, checked, backed up, thrown away."""
