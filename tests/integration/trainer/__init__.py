"""The trainer library, in processes of its own."""
