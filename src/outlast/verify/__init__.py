"""`outlast verify`: proves outlast on the user's own cloud account, within bounds, and leaves nothing behind."""
