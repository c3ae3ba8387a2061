"""The dashboard: the live state of a workspace in a browser, and actions on its runs."""
