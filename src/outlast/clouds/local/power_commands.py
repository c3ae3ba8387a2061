"""The commands `shutdown`, `poweroff`, `halt` and `reboot` of a machine. The real ones would affect the host.

They accept the options and times of systemd's commands, and signal the machine's init.
"""

from __future__ import annotations

from outlast.clouds.local.files import remove_tree

NAMES = ("shutdown", "poweroff", "halt", "reboot")

# `@INIT@` is the pid of init, `@STATE@` the folder that remembers a scheduled shutdown until the next boot.
_SCRIPT = r"""#!/bin/sh
# Switches this machine off, or reboots it. The options are those of systemd's commands.
name=${0##*/}
action=off; cancel=; warn_only=
state=@STATE@

fail() { echo "$name: $1" >&2; exit 1; }
finish() {
    if [ "$1" = reboot ]; then number=HUP; else number=USR1; fi
    kill -s "$number" @INIT@ 2>/dev/null || fail "permission denied: use sudo"
    exit 0
}
letters() {
    rest=$1
    while [ -n "$rest" ]; do
        letter=${rest%"${rest#?}"}; rest=${rest#?}
        case $name$letter in
            shutdown[HPh] | *p) action=off ;;
            shutdownr) action=reboot ;;
            shutdownc) cancel=yes ;;
            shutdownk) warn_only=yes ;;
            *w) warn_only=yes ;;
            *[KafFndi]) ;;
            *) fail "invalid option -- '$letter'" ;;
        esac
    done
}
seconds_until() {
    case $1 in
        now) echo 0 ;;
        *:*)
            wanted=$(date -d "$1" +%s 2>/dev/null) || return 1
            now=$(date +%s)
            [ "$wanted" -gt "$now" ] || wanted=$((wanted + 86400))
            echo $((wanted - now)) ;;
        *)
            minutes=${1#+}
            case $minutes in '' | *[!0-9]*) return 1 ;; esac
            echo $((minutes * 60)) ;;
    esac
}

[ "$name" = reboot ] && action=reboot
while [ $# -gt 0 ]; do
    case $1 in
        --halt | --poweroff) action=off ;;
        --reboot) action=reboot ;;
        --no-wall | --wall | --force | --no-sync | --no-wtmp | --message=*) ;;
        --wtmp-only) warn_only=yes ;;
        --show)
            [ -s "$state/shutdown.when" ] || { echo "No scheduled shutdown."; exit 1; }
            cat "$state/shutdown.when"; exit 0 ;;
        --help) echo "usage: $name [-h|-P|-H|-r|-c|-k] [now|+MINUTES|HH:MM] [MESSAGE]"; exit 0 ;;
        --) shift; break ;;
        --*) fail "unrecognized option '$1'" ;;
        -?*) letters "${1#-}" ;;
        *) break ;;
    esac
    shift
done

# A new time replaces the scheduled one, as does a cancellation.
forget() {
    [ -s "$state/shutdown.pid" ] || return 0
    read -r waiting < "$state/shutdown.pid"
    rm -f "$state/shutdown.pid" "$state/shutdown.when" 2>/dev/null || fail "permission denied: use sudo"
    kill "$waiting" 2>/dev/null
    return 0
}
if [ -n "$cancel" ]; then forget; exit 0; fi
[ -z "$warn_only" ] || exit 0
[ "$name" = shutdown ] || finish "$action"
wait_s=$(seconds_until "${1:-+1}") || fail "failed to parse time specification: ${1:-+1}"
[ "$wait_s" -gt 0 ] || finish "$action"
forget
kill -s 0 @INIT@ 2>/dev/null || fail "permission denied: use sudo"
if [ "$action" = reboot ]; then number=HUP; word=Reboot; else number=USR1; word=Shutdown; fi
at=$(date -d "+$wait_s seconds" 2>/dev/null || echo "in $wait_s s")
nohup sh -c "sleep $wait_s && kill -s $number @INIT@" </dev/null >/dev/null 2>&1 &
echo $! > "$state/shutdown.pid"
echo "$word scheduled for $at, use 'shutdown -c' to cancel." | tee "$state/shutdown.when" >&2
"""


def script(*, init_pid: int, state: str) -> str:
    """Return the program of all power commands; it acts by the name under which it is called."""
    return _SCRIPT.replace("@INIT@", str(init_pid)).replace("@STATE@", f"'{state}'")


def forget_scheduled(state: str) -> None:
    """Forget the shutdown that the former boot scheduled."""
    for name in ("shutdown.pid", "shutdown.when"):
        remove_tree(f"{state}/{name}", timeout_s=0.0)
