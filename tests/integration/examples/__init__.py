"""The examples, run as their readers run them."""
