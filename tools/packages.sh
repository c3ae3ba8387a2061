#!/bin/sh
# Installs the programs that tests and some modes of the local cloud use, on Debian as root. It is optional: tests that need
# a missing program are skipped with a message.
set -u
wanted="openssh-server openssh-client rsync iproute2 nftables tmux curl runc mariadb-server postgresql openssl sshfs awscli chromium-headless-shell libfaketime debootstrap"
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
# Keep their services off: the tests start separate servers, on loopback or in namespaces.
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
    echo "could not install them; tests that need them are skipped"
