"""Text and rows for events, quantities and runs, shared by the command line and the dashboard."""
