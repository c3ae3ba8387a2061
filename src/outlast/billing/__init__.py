"""Spending: the ledger, limits and their usage."""
