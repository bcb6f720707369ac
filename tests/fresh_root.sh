#!/usr/bin/env bash
# Runs ./dev in a Debian 12 that holds nothing but git and bash, and prints how long each command took. As root:
#   tests/fresh_root.sh FOLDER [COMMAND...]     FOLDER is made anew; default commands: demo test
# Needs debootstrap. SUITE (bookworm) and MIRROR (the first one of this machine's apt sources) may be set. The way to
# the network (apt's Acquire options, certificates, resolv.conf, proxy variables) is taken over from this machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

((EUID == 0)) || { echo "fresh_root.sh: must be root" >&2 && exit 1; }
(($# > 0)) || { sed -n '2,5s/^# //p' "$0" >&2 && exit 1; }
root=$1
[[ ! -e $root ]] || { echo "fresh_root.sh: $root exists" >&2 && exit 1; }
shift
suite=${SUITE:-bookworm}
# shellcheck disable=SC2016  # apt-get's own placeholder
mirror=${MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' "Codename: $suite" | head -n 1)}

echo "debootstrap of $suite into $root"
debootstrap --variant=minbase --include=git,ca-certificates "$suite" "$root" "$mirror" >"$root.log" 2>&1 ||
  { tail -n 3 "$root.log" >&2 && exit 1; }

# The way to the network.
apt-config dump | grep '^Acquire::' >"$root/etc/apt/apt.conf.d/99host"
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
network=()
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY SSL_CERT_FILE PIP_CERT; do
  [[ -z ${!name:-} ]] || network+=("$name=${!name}")
done

# The tree as a clone would have it, with what is new and not ignored.
mkdir "$root/kernd"
git ls-files -co --exclude-standard --deduplicate | while read -r file; do [[ ! -e $file ]] || echo "$file"; done |
  tar -cf - -T - | tar -xf - -C "$root/kernd" --no-same-owner

inside() { env -i HOME=/root TERM=dumb PATH=/usr/sbin:/usr/bin:/sbin:/bin "${network[@]}" chroot "$root" "$@"; }

trap 'umount "$root/dev/pts" "$root/dev" "$root/proc" 2>/dev/null || true' EXIT
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
mount --bind /dev/pts "$root/dev/pts"
inside git -C /kernd init -q
inside git -C /kernd add -A

(($# > 0)) || set -- demo test
results=()
for command in "$@"; do
  start=$SECONDS code=0
  # shellcheck disable=SC2086  # a command may have arguments
  inside /kernd/dev $command </dev/null || code=$?
  results+=("./dev $command: $((SECONDS - start)) s, exit code $code")
  ((code == 0)) || break
done
printf '%s\n' "${results[@]}"
exit "$code"
