#!/bin/bash
# Puts a Linux kernel for virtual machines into a directory: vmlinuz and the modules named on the
# command line, as modules/NAME.ko, from Debian's package. The package is downloaded, not installed,
# and kept for the next time.
#
#   fetch_kernel.sh DIRECTORY MODULE...

set -euo pipefail

out=$1
shift

say() { printf 'fetch_kernel: %s\n' "$*" >&2; }

for tool in apt-get apt-cache dpkg-deb; do
  command -v "$tool" > /dev/null || { say "there is no $tool on the PATH"; exit 1; }
done

# The real package behind the one that always names the newest.
newest() {
  apt-cache depends linux-image-amd64 2> /dev/null |
    awk '/Depends: linux-image-[0-9]/ { print $2; exit }'
}

package=$(newest)
if [[ -z $package && $EUID == 0 ]]; then
  apt-get -qq update > /dev/null 2>&1 || true
  package=$(newest)
fi
[[ -n $package ]] || { say "apt knows no linux-image-amd64; run apt-get update"; exit 1; }
version=$(apt-cache show --no-all-versions "$package" | awk '/^Version:/ { print $2; exit }')

cache=${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/dmakit-kernel
mkdir -p "$cache" 2> /dev/null || cache=$out
deb=$cache/${package}_${version//:/%3a}_amd64.deb
if [[ ! -f $deb ]]; then
  work=$(mktemp -d "$cache/fetch.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  (cd "$work" && apt-get -qq download "$package=$version") > /dev/null 2>&1 ||
    { say "could not download $package=$version"; exit 1; }
  mv "$work"/*.deb "$deb"
fi

tree=$(mktemp -d "$out/tree.XXXXXX")
dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$tree" ./boot ./lib/modules
mkdir -p "$out/modules"
cp "$tree"/boot/vmlinuz-* "$out/vmlinuz"
for module in "$@"; do
  file=$(find "$tree/lib/modules" -name "$module.ko" -print -quit)
  [[ -n $file ]] || { say "$package has no module $module"; exit 1; }
  cp "$file" "$out/modules/"
done
rm -rf "$tree"
