"""Commands, run through the real console script."""
