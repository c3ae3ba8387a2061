"""`OUTLAST_LOG` and `--verbose`: what a command does, for a bug report.

The log has versions, the command line, started programs, connections, and errors with their tracebacks. Values of
`--env` and of secrets are left out; read a log before you publish it nevertheless: it names hosts and folders.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
import time
from typing import Any

from outlast import __version__

VARIABLE = "OUTLAST_LOG"
# Values that mean the terminal instead of a file.
_TERMINAL = ("1", "-", "stderr")
# Options whose values may be confidential.
_MASKED = ("--env", "-e", "--secret")
_log = logging.getLogger("outlast")


def wanted() -> bool:
    return bool(os.environ.get(VARIABLE))


def start(argv: list[str]) -> None:
    """Begin to log if the user asked for it. A log that cannot be written is reported and left out."""
    where = os.environ.get(VARIABLE, "")
    if not where:
        return
    try:
        handler = (
            logging.StreamHandler(sys.stderr) if where in _TERMINAL else logging.FileHandler(os.path.expanduser(where))
        )
    except OSError as problem:
        print(f"warning: {VARIABLE}: cannot write {where}: {problem.strerror}", file=sys.stderr)
        return
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(process)d %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.addHandler(handler)
    # Libraries log requests with credentials at the level below.
    root.setLevel(logging.INFO)
    _log.info("outlast %s, Python %s, %s", __version__, platform.python_version(), platform.platform())
    _log.info("command: %s", " ".join(masked(argv)))
    names = sorted(name for name in os.environ if name.startswith("OUTLAST_"))
    _log.info("variables: %s", " ".join(names))
    sys.addaudithook(_audited)


def masked(argv: list[str]) -> list[str]:
    """Return the arguments without values that may be confidential."""
    shown = []
    hide = False
    for word in argv:
        option, equals, value = word.partition("=")
        if hide:
            shown.append(f"{option}=…" if equals else "…")
        elif option in _MASKED and equals:
            shown.append(f"{option}={value.partition('=')[0]}=…")
        else:
            shown.append(word)
        hide = word in _MASKED
    return shown


def log_error(problem: BaseException) -> None:
    """Log an error with its traceback, which users do not see."""
    if wanted():
        _log.info("error: %s", problem, exc_info=problem)


def log_end(code: int) -> int:
    """Log the exit code, and return it."""
    if wanted():
        _log.info("exit code %d", code)
    return code


_inside = [False]


def _audited(event: str, arguments: tuple[Any, ...]) -> None:
    """Log started programs and connections. Called by Python for every audited operation."""
    if event not in ("subprocess.Popen", "socket.connect") or _inside[0]:
        return
    _inside[0] = True
    try:
        if event == "subprocess.Popen":
            _log.info("start %s", arguments[0])
        else:
            _log.info("connect %s", arguments[1])
    finally:
        _inside[0] = False
