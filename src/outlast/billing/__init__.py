"""What was spent: the ledger, limits and their usage."""
