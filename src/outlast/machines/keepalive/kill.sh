# End start $2 and all its processes: SIGTERM, then SIGKILL after $3 pauses of 0.2 s.
: > "$D/run-$n/halted"
alive "$n" || exit 0
kill -s TERM -- "-$pid" 2>/dev/null
i=0; while alive "$n" && [ "$i" -lt "$3" ]; do sleep 0.2; i=$((i + 1)); done
kill -s KILL -- "-$pid" 2>/dev/null
for e in /proc/[0-9]*/environ; do
    p=${e#/proc/}; p=${p%/environ}
    [ "$p" != $$ ] && tr '\0' '\n' 2>/dev/null < "$e" | grep -qx "OUTLAST_KEEP=$id:$n" && kill -KILL "$p" 2>/dev/null
done
true
