# Print the state of the newest start. $2: seconds without progress before the watched folders ($3 …) are searched.
look_s=$2; shift 2; n=0
for d in "$D"/run-*; do k=${d##*/run-}; [ -d "$d" ] && [ "$k" -gt "$n" ] && n=$k; done
echo "number=$n"; [ "$n" -gt 0 ] || exit 0
R="$D/run-$n"; now=$(date +%s)
[ -d "$R/go" ] && [ ! -f "$R/void" ] && echo went=1
alive "$n" && echo alive=1
if [ -f "$R/exit" ]; then
    echo "exit_code=$(cat "$R/exit")"
    printf 'last_line=%s\n' "$(tail -c 4000 "$R/output" 2>/dev/null | grep -a '[^[:space:]]' | tail -n 1 | cut -c 1-200)"
fi
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
