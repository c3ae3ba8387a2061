"""What becomes of old runs: which are deleted, how, and which shared objects nothing refers to any more."""
