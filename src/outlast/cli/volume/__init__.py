"""Commands for volumes."""
