"""Commands for machines that a user creates."""
