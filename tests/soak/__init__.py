"""Real processes under real faults for a long time."""
