"""Use cases that the command line and the dashboard share."""
