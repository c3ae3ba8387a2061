"""`pip` of an environment that outlast made: calls uv with the environment beside it.

Copied into environments as the module `pip`, so it uses the standard library alone.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

# Of pip's commands, those that uv has for an environment.
_COMMANDS = ("install", "uninstall", "list", "freeze", "show", "check", "tree")
_IGNORED = ("--no-input", "--disable-pip-version-check", "--no-warn-script-location", "--no-cache-dir")
_NETWORK = re.compile(r"dns error|error sending request|Failed to fetch|Could not connect|timed out", re.IGNORECASE)


def main(argv: list[str]) -> int:
    beside = os.path.join(sys.prefix, "bin", "uv")
    uv = beside if os.access(beside, os.X_OK) else shutil.which("uv")
    if uv is None:
        print("outlast: pip needs `uv`, which this machine does not have", file=sys.stderr)
        return 1
    if argv[:1] in (["--version"], ["-V"]):
        print(f"pip (uv) from {os.path.dirname(__file__)} (python {sys.version.split()[0]})")
        return 0
    arguments = _arguments(argv)
    own = {"UV_LINK_MODE": "copy", "UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1"}
    environment = {**own, **_index_settings(), **os.environ}
    if not os.access(os.path.expanduser("~"), os.W_OK):
        environment.setdefault("UV_NO_CACHE", "1")
    done = subprocess.run([uv, "pip", *arguments], env=environment, stderr=subprocess.PIPE, check=False)
    sys.stderr.write(done.stderr.decode("utf-8", "replace"))
    if done.returncode and _NETWORK.search(done.stderr.decode("utf-8", "replace")):
        print("outlast: this machine reaches no package index; list the package in requirements.txt instead:", end=" ")
        print("outlast installs it before the command starts", flush=True)
    return done.returncode


def _arguments(argv: list[str]) -> list[str]:
    if argv[:1] and argv[0] in _COMMANDS:
        rest = ["--upgrade" if word == "-U" else word for word in argv[1:] if word not in _IGNORED]
        if argv[0] == "uninstall":
            rest = [word for word in rest if word not in ("-y", "--yes")]
        return [argv[0], "--python", sys.executable, *rest]
    return argv


def _index_settings() -> dict[str, str]:
    """Return the settings of pip in the environment by uv's names."""
    names = {"PIP_INDEX_URL": "UV_DEFAULT_INDEX", "PIP_EXTRA_INDEX_URL": "UV_INDEX", "PIP_FIND_LINKS": "UV_FIND_LINKS"}
    return {ours: os.environ[theirs] for theirs, ours in names.items() if os.environ.get(theirs)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
