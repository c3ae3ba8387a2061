"""The name of the user who runs outlast, as recorded in events and records."""

from __future__ import annotations

import getpass
import os


def current_user() -> str:
    """Return the login name, or the numeric user id if the system has no name for it (as in some containers)."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
