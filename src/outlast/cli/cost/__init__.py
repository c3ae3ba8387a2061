"""Commands for costs, prices and limits."""
