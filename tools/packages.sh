#!/bin/sh
# Installs what tests and the better modes of the local cloud use, where that is possible: Debian, as root. Without it nothing
# fails: tests that need a missing program say so and are skipped.
set -u
wanted="openssh-server openssh-client rsync iproute2 nftables tmux curl runc mariadb-server postgresql openssl sshfs awscli chromium-headless-shell libfaketime"
missing=""
for package in $wanted; do
    dpkg -s "$package" >/dev/null 2>&1 || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "not installed:$missing; tests that need them are skipped"
    exit 0
fi
echo "installing:$missing"
# Their services stay off: the tests start servers of their own, on loopback or in namespaces of their own.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' > $policy && chmod 755 $policy
    trap 'rm -f $policy' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
install="apt-get install --yes --quiet --quiet --no-install-recommends"
# shellcheck disable=SC2086
$install $missing >/dev/null 2>&1 ||
    { apt-get update --quiet --quiet >/dev/null 2>&1 && $install $missing >/dev/null 2>&1; } ||
    echo "they could not be installed; tests that need them are skipped"
