"""Commands for the supervisor."""
