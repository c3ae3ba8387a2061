"""Text and rows for people: events, amounts, runs. Shared by the command line and the dashboard."""
