"""What pages show, as plain values: no browser, no event loop."""
