# Start the command (on stdin) once per number. Further arguments: boots, the text of run.sh.
# Prints started, alive or claimed.
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
