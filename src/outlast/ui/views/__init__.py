"""The contents of pages as plain values, without browser and event loop."""
