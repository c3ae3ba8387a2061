"""Integrations with frameworks, one module each. A module imports its own framework and no other."""
