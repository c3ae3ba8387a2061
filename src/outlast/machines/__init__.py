"""Machines that users create, log in to, keep running and delete. Independent of runs."""
