"""The command on the machine: each start number runs once, detached; output and exit code stay on the machine's disk.

    ~/.outlast/keep/<id>/command        the command, byte by byte; read by a login shell
                         run.sh         what runs it
                         run-3/go/      `run.sh` creates it to begin start 3; start 4 does to prevent that
                         run-3/pid boot boots void output metrics.jsonl progress exit notice halted

Plain sh, so that nothing must be installed on the machine. `plan` interprets the exit.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from outlast.errors import CloudError
from outlast.machines.keepalive.world import KeptJob
from outlast.machines.ssh import Link

_SSH_S = 60.0

_HEAD = """\
id=$1; n=$2; D="$HOME/.outlast/keep/$id"
boot() { cat /proc/sys/kernel/random/boot_id 2>/dev/null; sed 's/.*) //' /proc/1/stat 2>/dev/null | cut -d ' ' -f 20; }
alive() {
    pid=$(cat "$D/run-$1/pid" 2>/dev/null) && [ -n "$pid" ] &&
        tr '\\0' ' ' 2>/dev/null < "/proc/$pid/cmdline" | grep -qF "keep/$id/run.sh $1 "
}
"""

# Store the exit code, then check for a preemption, then publish both with one rename.
_RUN = """\
#!/bin/sh
n=$1; D=$(dirname "$0"); R="$D/run-$n"
echo $$ > "$R/pid.new" && mv "$R/pid.new" "$R/pid"
mkdir "$R/go" 2>/dev/null || exit 0
: > "$R/output"; : > "$R/progress"
export OUTLAST_KEEP="$(basename "$D"):$n" OUTLAST_METRICS_FILE="$R/metrics.jsonl" PYTHONUNBUFFERED=1
cd "$HOME" || exit 1
shell=$(command -v bash || echo /bin/sh)
taken_away() {
    url="http://${GCE_METADATA_HOST:-169.254.169.254}/computeMetadata/v1/instance/preempted"
    if command -v curl >/dev/null; then answer=$(curl -s -m 2 -H 'Metadata-Flavor: Google' "$url")
    else answer=$(wget -q -T 2 -t 1 -O - --header 'Metadata-Flavor: Google' "$url" 2>/dev/null); fi
    [ "$answer" = TRUE ] || [ "$(systemctl is-system-running 2>/dev/null)" = stopping ]
}
work() {
    "$shell" -l "$D/command"
    echo $? > "$R/exit.new"
    if taken_away; then : > "$R/notice"; fi
    mv "$R/exit.new" "$R/exit"
}
if [ "$2" = seen ]; then work 2>&1 | tee -a "$R/output"; else work >> "$R/output" 2>&1 < /dev/null; fi
"""

_START = (
    _HEAD
    + """\
umask 077; mkdir -p "$D" || exit 1
cat > "$D/command.$$" && mv "$D/command.$$" "$D/command" || exit 1
before=$((n - 1))
if [ -d "$D/run-$before" ]; then
    if mkdir "$D/run-$before/go" 2>/dev/null; then : > "$D/run-$before/void"
    elif alive "$before"; then echo alive; exit 0; fi
fi
mkdir "$D/run-$n" 2>/dev/null || { echo claimed; exit 0; }
boot > "$D/run-$n/boot"; echo "$3" > "$D/run-$n/boots"
printf %s "$4" > "$D/run.$$" && mv "$D/run.$$" "$D/run.sh" || exit 1
if command -v tmux >/dev/null 2>&1; then
    tmux -L "outlast-$id" kill-server 2>/dev/null
    tmux -L "outlast-$id" new-session -d -s keep "exec sh '$D/run.sh' $n seen" 2>/dev/null && { echo started; exit 0; }
fi
if command -v setsid >/dev/null 2>&1; then fork=setsid; else fork=; fi
$fork nohup sh "$D/run.sh" "$n" > /dev/null 2>&1 < /dev/null &
echo started
"""
)

_PROBE = (
    _HEAD
    + """\
look_s=$2; shift 2; n=0
for d in "$D"/run-*; do k=${d##*/run-}; [ -d "$d" ] && [ "$k" -gt "$n" ] && n=$k; done
echo "number=$n"; [ "$n" -gt 0 ] || exit 0
R="$D/run-$n"; now=$(date +%s)
[ -d "$R/go" ] && [ ! -f "$R/void" ] && echo went=1
alive "$n" && echo alive=1
[ -f "$R/exit" ] && echo "exit_code=$(cat "$R/exit")"
[ -f "$R/notice" ] && echo noticed=1
[ -f "$R/halted" ] && echo halted=1
[ "$(boot)" = "$(cat "$R/boot" 2>/dev/null)" ] && echo same_boot=1
echo "boots=$(cat "$R/boots" 2>/dev/null)"
echo "claimed_s=$((now - $(stat -c %Y "$R")))"
P="$R/progress"
if [ -f "$P" ] && [ "$look_s" -gt 0 ]; then
    for f in "$R/output" "$R/metrics.jsonl"; do [ "$f" -nt "$P" ] && touch -r "$f" "$P"; done
    if [ $((now - $(stat -c %Y "$P"))) -ge "$look_s" ] && [ $# -gt 0 ]; then
        new=$(timeout 20 find "$@" -xdev -path "$D" -prune -o -type f -newer "$P" -print 2>/dev/null | head -n 1)
        [ -n "$new" ] && touch "$P"
    fi
    echo "idle_s=$((now - $(stat -c %Y "$P")))"
fi
true
"""
)

_KILL = (
    _HEAD
    + """\
: > "$D/run-$n/halted"
alive "$n" || exit 0
kill -s TERM -- "-$pid" 2>/dev/null
i=0; while alive "$n" && [ "$i" -lt "$3" ]; do sleep 0.2; i=$((i + 1)); done
kill -s KILL -- "-$pid" 2>/dev/null
for e in /proc/[0-9]*/environ; do
    p=${e#/proc/}; p=${p%/environ}
    [ "$p" != $$ ] && tr '\\0' '\\n' 2>/dev/null < "$e" | grep -qx "OUTLAST_KEEP=$id:$n" && kill -KILL "$p" 2>/dev/null
done
true
"""
)


def start(link: Link, id: str, number: int, command: str, *, boots: int) -> str:
    """Start the command: `started`, `alive` (the previous start still runs) or `claimed` (started before)."""
    argv = ["sh", "-c", _START, "sh", id, str(number), str(boots), _RUN]
    answer = link.run(argv, input=command.encode() + b"\n", timeout_s=_SSH_S)
    return answer.stdout.decode("utf-8", "replace").strip()


def probe(link: Link, id: str, *, boots: int, halt_after_s: float = 0.0, watch: Sequence[str] = ()) -> KeptJob:
    """Return the state of the command. Searches folders only after half the allowed idle time."""
    look_s = max(1, int(halt_after_s / 2)) if halt_after_s else 0
    folders = " ".join(_folder(path) for path in watch)
    # The folders are words of the shell there, so that `~` is its home.
    text = f"set -- {id} {look_s} {folders}\n{_PROBE}"
    answer = link.run(["sh", "-c", text], timeout_s=_SSH_S)
    return read(answer.stdout.decode("utf-8", "replace"), boots=boots)


def _folder(path: str) -> str:
    if path == "~" or path.startswith("~/"):
        return '"$HOME"' + shlex.quote(path[1:]) if path != "~" else '"$HOME"'
    return shlex.quote(path) if path.startswith("/") else '"$HOME"/' + shlex.quote(path)


def kill(link: Link, id: str, number: int, *, grace_s: float = 10.0) -> None:
    """End the command and all its processes: SIGTERM, then SIGKILL."""
    link.run(["sh", "-c", _KILL, "sh", id, str(number), str(int(grace_s * 5))], timeout_s=_SSH_S + grace_s)


def read(text: str, *, boots: int) -> KeptJob:
    """Parse the output of the probe. Raises CloudError."""
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    try:
        return KeptJob(
            number=int(values["number"]),
            went="went" in values,
            alive="alive" in values,
            exit_code=int(values["exit_code"]) if values.get("exit_code") else None,
            noticed="noticed" in values,
            halted="halted" in values,
            this_boot="same_boot" in values and values.get("boots") == str(boots),
            claimed_s=float(values.get("claimed_s", 0)),
            idle_s=float(values.get("idle_s", 0)),
        )
    except (KeyError, ValueError) as problem:
        raise CloudError(f"the machine reported an unreadable state of its command: {text[:200]!r}") from problem
