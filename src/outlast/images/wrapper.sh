# Runs the script $1 and reports the line at which it failed: "@outlast-failed@ line N code C".
#
# `source` keeps the script's own line numbers. Functions and sourced files inherit the traps; BASH_SOURCE shows whether
# a line is the script's own. stdout and stderr are merged, because ssh would deliver them out of order.
exec 2>&1
set -eETo pipefail
outlast_own=$1
outlast_end() {
  local code=$?
  trap - DEBUG
  [ $code = 0 ] || echo "@outlast-failed@ line ${outlast_line:-0} code $code"
}
trap '[[ "$BASH_COMMAND" = *outlast_own* || "${BASH_SOURCE[0]}" != "$outlast_own" ]] || outlast_line=$LINENO' DEBUG
trap '[ "${BASH_SOURCE[0]}" != "$outlast_own" ] || outlast_line=$LINENO' ERR
trap outlast_end EXIT
set --
source "$outlast_own"
