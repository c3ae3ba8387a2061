"""One page a file. What the pages are is told in `ui/pages/table.py`."""
