"""The terminal of a run or a machine, here: entered, left, and entered again after the connection broke.

Refuses to end anything by leaving: whatever runs there goes on.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import termios
import time

from outlast.errors import CloudUnreachable, OutlastError, UsageError
from outlast.machines.ssh import Link
from outlast.sync.target import Over, Report, RunTarget, Target

_SSH_LOST = 255
# A connection that could be made, and ended at once so many times on end, is one that opens no terminal.
_REFUSALS, _REFUSED_S = 8, 3.0
_NO_TERMINAL, _NO_TMUX, _LEFT = 103, 104, 10
_FIND = 'd=$(readlink -f "$HOME/.outlast/terminal" 2>/dev/null)\n[ -n "$d" ] && [ -d "$d" ] || d=\n'
# The session of the run's command. Without tmux the relay shows it by itself.
_OF_RUN = (
    _FIND
    + f"""[ -n "$d" ] || exit {_NO_TERMINAL}
if command -v tmux >/dev/null && [ -S "$d/tmux" ]; then exec tmux -u -S "$d/tmux" attach-session -t outlast; fi
command -v python3 >/dev/null || exit {_NO_TMUX}
echo "outlast: there is no tmux on this machine; Ctrl-] leaves, and the command goes on"
exec python3 -IS -c "$relay" "$d/relay" direct
"""
)
# What `outlast machine keep` started is in a tmux of its own; the newest first.
_KEPT = """kept=
for k in $(ls -t "$HOME/.outlast/keep" 2>/dev/null); do
  if tmux -L "outlast-$k" has-session -t keep 2>/dev/null; then kept="outlast-$k"; break; fi
done
"""
# A machine's own session, made when it is first entered. Its socket is in a folder of ours: machines of the local cloud
# may share the default one with this computer. The path of a socket must be short.
_OF_MACHINE = (
    f"command -v tmux >/dev/null || exit {_NO_TMUX}\n"
    + _KEPT
    + '[ -z "$kept" ] || exec tmux -u -L "$kept" attach-session -t keep\n'
    + _FIND
    + """if [ -z "$d" ]; then
  near="$HOME/.outlast"
  mkdir -p "$near" && if [ ${#near} -lt 80 ]; then d="$near/t"; mkdir -p "$d"; else d=$(TMPDIR=/tmp mktemp -d); fi
  ln -sfn "$d" "$near/terminal"
fi
cd "$HOME" && exec tmux -u -S "$d/tmux" new-session -A -s outlast
"""
)
_STILL = _KEPT + _FIND + '[ -n "$kept" ] || { [ -n "$d" ] && tmux -S "$d/tmux" has-session -t outlast; }'


def attach(target: Target, *, report: Report) -> int:
    """Enter and stay until the user leaves or it ends. Follows a run to its next machine."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "`outlast attach` needs a terminal", hint="`outlast logs -f` shows the output of a run without one"
        )
    entered, refused = False, 0
    while True:
        try:
            link = target.connect(report=report, patient=entered)
        except Over as over:
            if not entered:
                raise UsageError(over.message, hint=over.hint) from over
            report(over.message)
            return 0
        began_at = time.monotonic()
        code = _enter(target, link)
        refused = refused + 1 if code == _SSH_LOST and time.monotonic() - began_at < _REFUSED_S else 0
        if refused >= _REFUSALS:
            raise CloudUnreachable(
                f"{link.name} lets us in, and ends every terminal at once",
                hint=f"a command without a terminal may work: `outlast machine ssh {link.name} -- CMD`",
            )
        if code == _SSH_LOST:
            report(f"the connection to {link.name} was lost; connecting again")
            entered = True
            time.sleep(0.5)
        elif code in (_NO_TERMINAL, _NO_TMUX):
            if not entered:
                raise _refused(target, link, code)
            time.sleep(0.5)  # its command has ended; the story will say how it goes on
        elif code == _LEFT or _goes_on(link):
            report(f"left; it goes on. Back to it: `outlast attach {target.name}`")
            return 0
        elif not isinstance(target, RunTarget):
            return 0
        else:
            entered = True


def _enter(target: Target, link: Link) -> int:
    """One visit; the exit code of ssh. The terminal is as it was afterwards, whatever broke."""
    before = termios.tcgetattr(0)
    script = _OF_MACHINE
    if isinstance(target, RunTarget):
        script = f"relay={shlex.quote(_relay())}\n" + _OF_RUN
    term = os.environ.get("TERM", "")
    # A machine need not know the newest terminals.
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


def _goes_on(link: Link) -> bool:
    try:
        return link.run(["sh", "-c", _STILL], check=False, timeout_s=20.0).returncode == 0
    except OutlastError:
        return False


def _refused(target: Target, link: Link, code: int) -> OutlastError:
    if code == _NO_TMUX:
        return OutlastError(
            f"there is no `tmux` on {link.name}",
            hint=f"install it there, or go without: `outlast machine ssh {link.name}`",
        )
    return UsageError(
        f"the command of {target.name} has no terminal: it was not started with `--interactive`",
        hint=f"`outlast logs -f {target.name}` shows its output; a shell beside it: `outlast machine ssh {link.name}`",
    )
