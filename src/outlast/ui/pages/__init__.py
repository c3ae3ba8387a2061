"""The pages of the dashboard, one module each; `ui/server.py` lists them."""
