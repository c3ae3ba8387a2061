"""Keeps machines alive that people made: observe → plan → apply, one machine a loop. Refuses to know of runs."""
