"""`outlast attach`: the terminal of a run or a machine. Reconnects when the connection breaks."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import termios
import time

from outlast.errors import CloudUnreachable, OutlastError, UsageError
from outlast.machines.ssh import Link
from outlast.sync.target import Report, RunTarget, Target, TargetEnded

_SSH_LOST = 255
# After this many consecutive sessions that ended within seconds, the machine is taken to refuse terminals.
_SHORT_SESSIONS, _SHORT_SESSION_S = 8, 3.0
_NO_TERMINAL, _NO_TMUX, _LEFT = 103, 104, 10
_FIND_TERMINAL = 'd=$(readlink -f "$HOME/.outlast/terminal" 2>/dev/null)\n[ -n "$d" ] && [ -d "$d" ] || d=\n'
# Without tmux, the relay shows the command's terminal directly.
_ATTACH_RUN = (
    _FIND_TERMINAL
    + f"""[ -n "$d" ] || exit {_NO_TERMINAL}
if command -v tmux >/dev/null && [ -S "$d/tmux" ]; then exec tmux -u -S "$d/tmux" attach-session -t outlast; fi
command -v python3 >/dev/null || exit {_NO_TMUX}
echo "outlast: no tmux on this machine; Ctrl-] detaches, the command continues"
exec python3 -IS -c "$relay" "$d/relay" direct
"""
)
# `outlast machine keep` starts each command in a separate tmux server; prefer the newest.
_FIND_KEPT = """kept=
for k in $(ls -t "$HOME/.outlast/keep" 2>/dev/null); do
  if tmux -L "outlast-$k" has-session -t keep 2>/dev/null; then kept="outlast-$k"; break; fi
done
"""
# The machine's own session is created on first use. Its socket is in our folder, because machines of the local cloud
# may share tmux's default socket with this computer. The path of a socket must be short.
_ATTACH_MACHINE = (
    f"command -v tmux >/dev/null || exit {_NO_TMUX}\n"
    + _FIND_KEPT
    + '[ -z "$kept" ] || exec tmux -u -L "$kept" attach-session -t keep\n'
    + _FIND_TERMINAL
    + """if [ -z "$d" ]; then
  near="$HOME/.outlast"
  mkdir -p "$near" && if [ ${#near} -lt 80 ]; then d="$near/t"; mkdir -p "$d"; else d=$(TMPDIR=/tmp mktemp -d); fi
  ln -sfn "$d" "$near/terminal"
fi
cd "$HOME" && exec tmux -u -S "$d/tmux" new-session -A -s outlast
"""
)
_SESSION_EXISTS = (
    _FIND_KEPT + _FIND_TERMINAL + '[ -n "$kept" ] || { [ -n "$d" ] && tmux -S "$d/tmux" has-session -t outlast; }'
)


def attach(target: Target, *, report: Report) -> int:
    """Attach until the user detaches or the command ends. Follow a run to its next machine."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "`outlast attach` needs a terminal", hint="`outlast logs -f` shows the output of a run without one"
        )
    entered, refused = False, 0
    while True:
        try:
            link = target.connect(report=report, wait=entered)
        except TargetEnded as ended:
            if not entered:
                raise UsageError(ended.message, hint=ended.hint) from ended
            report(ended.message)
            return 0
        began_at = time.monotonic()
        code = _enter(target, link)
        refused = refused + 1 if code == _SSH_LOST and time.monotonic() - began_at < _SHORT_SESSION_S else 0
        if refused >= _SHORT_SESSIONS:
            raise CloudUnreachable(
                f"{link.name} accepts the connection but closes every terminal at once",
                hint=f"try a command without a terminal: `outlast machine ssh {link.name} -- CMD`",
            )
        if code == _SSH_LOST:
            report(f"the connection to {link.name} was lost; connecting again")
            entered = True
            time.sleep(0.5)
        elif code in (_NO_TERMINAL, _NO_TMUX):
            if not entered:
                raise _no_terminal_error(target, link, code)
            time.sleep(0.5)  # the command has ended; the story will show whether another attempt follows
        elif code == _LEFT or _session_exists(link):
            report(f"detached; the command continues. Attach again: `outlast attach {target.name}`")
            return 0
        elif not isinstance(target, RunTarget):
            return 0
        else:
            entered = True


def _enter(target: Target, link: Link) -> int:
    """Open one session and return ssh's exit code. Always restore the local terminal's settings."""
    before = termios.tcgetattr(0)
    script = _ATTACH_MACHINE
    if isinstance(target, RunTarget):
        script = f"relay={shlex.quote(_relay())}\n" + _ATTACH_RUN
    term = os.environ.get("TERM", "")
    # The machine's terminfo may lack this terminal.
    known = f"infocmp {shlex.quote(term)} >/dev/null 2>&1 || export TERM=xterm-256color\n" if term else ""
    argv = [*link.argv(tty=True, options=("-o", "ControlPath=none")), "--", f"sh -c {shlex.quote(known + script)}"]
    try:
        return subprocess.call(argv)
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def _relay() -> str:
    path = os.path.join(os.path.dirname(os.path.dirname(__file__)), "agent", "relay.py")
    with open(path, encoding="utf-8") as file:
        return file.read()


def _session_exists(link: Link) -> bool:
    try:
        return link.run(["sh", "-c", _SESSION_EXISTS], check=False, timeout_s=20.0).returncode == 0
    except OutlastError:
        return False


def _no_terminal_error(target: Target, link: Link, code: int) -> OutlastError:
    if code == _NO_TMUX:
        return OutlastError(
            f"`tmux` is not installed on {link.name}",
            hint=f"install it there, or use `outlast machine ssh {link.name}`",
        )
    return UsageError(
        f"the command of {target.name} has no terminal: it was not started with `--interactive`",
        hint=f"`outlast logs -f {target.name}` shows its output; `outlast machine ssh {link.name}` opens a shell",
    )
