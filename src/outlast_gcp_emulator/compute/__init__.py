"""Google's Compute Engine API, version 1, in front of the local cloud."""
