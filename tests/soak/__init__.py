"""Real faults, real processes, for a long time."""
