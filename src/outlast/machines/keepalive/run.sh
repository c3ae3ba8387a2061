#!/bin/sh
# Run the command of start $1; with $2 = seen, inside tmux. Store the exit code, then check for a preemption, and then
# publish both with one rename.
n=$1; D=$(dirname "$0"); R="$D/run-$n"
echo $$ > "$R/pid.new" && mv "$R/pid.new" "$R/pid"
mkdir "$R/go" 2>/dev/null || exit 0
: > "$R/output"; : > "$R/progress"
export OUTLAST_KEEP="$(basename "$D"):$n" OUTLAST_METRICS_FILE="$R/metrics.jsonl" PYTHONUNBUFFERED=1
cd "$HOME" || exit 1
shell=$(command -v bash || echo /bin/sh)
preempted() {
    url="http://${GCE_METADATA_HOST:-169.254.169.254}/computeMetadata/v1/instance/preempted"
    if command -v curl >/dev/null; then answer=$(curl -s -m 2 -H 'Metadata-Flavor: Google' "$url")
    else answer=$(wget -q -T 2 -t 1 -O - --header 'Metadata-Flavor: Google' "$url" 2>/dev/null); fi
    [ "$answer" = TRUE ] || [ "$(systemctl is-system-running 2>/dev/null)" = stopping ]
}
work() {
    "$shell" -l "$D/command"
    echo $? > "$R/exit.new"
    if preempted; then : > "$R/notice"; fi
    mv "$R/exit.new" "$R/exit"
}
if [ "$2" = seen ]; then work 2>&1 | tee -a "$R/output"; else work >> "$R/output" 2>&1 < /dev/null; fi
