# Prepended to start.sh, probe.sh and kill.sh. Arguments: the id of the command, the number of the start.
id=$1; n=$2; D="$HOME/.outlast/keep/$id"
boot() { cat /proc/sys/kernel/random/boot_id 2>/dev/null; sed 's/.*) //' /proc/1/stat 2>/dev/null | cut -d ' ' -f 20; }
alive() {
    pid=$(cat "$D/run-$1/pid" 2>/dev/null) && [ -n "$pid" ] &&
        tr '\0' ' ' 2>/dev/null < "/proc/$pid/cmdline" | grep -qF "keep/$id/run.sh $1 "
}
