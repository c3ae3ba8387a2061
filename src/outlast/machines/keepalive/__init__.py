"""`outlast machine keep`: keeps a machine and its command running, as observe → plan → apply."""
