"""Commands for databases."""
