"""Commands for the local cloud."""
