"""Environments: the Python packages of a run, found in its code folder, locked at submit, named by their content."""
