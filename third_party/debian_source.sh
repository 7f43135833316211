#!/usr/bin/env bash
# Unpacks Debian's source packages, with Debian's patches applied. Needs apt, patch and python3,
# and no root.
#
#     third_party/debian_source.sh RELEASE FOLDER PACKAGE...
#
#   RELEASE   trixie, say
#   FOLDER    gets a folder for each PACKAGE, of its name
#
#   RUEDA_DEBIAN_MIRROR   where they come from; default: http://deb.debian.org/debian
set -euo pipefail

mirror=${RUEDA_DEBIAN_MIRROR:-http://deb.debian.org/debian}
[[ $# -ge 3 && $1 != -* ]] || { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" && exit 2; }
fail() {
  printf 'debian_source: %s\n' "$*" >&2
  exit 1
}
command -v apt-cache >/dev/null || fail "this is no Debian: there is no apt-cache"
for tool in patch python3; do command -v "$tool" >/dev/null || fail "there is no $tool"; done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{sources,lists/partial,cache/archives/partial,download} "$2"

# apt with an index of its own, of the sources alone. It checks the index against Debian's keys, and
# the index has the sums of the files.
cat >"$work/sources/debian.sources" <<END
Types: deb-src
URIs: $mirror
Suites: $1
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
END
apt_() {
  "$1" -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$work/sources" \
    -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" -o APT::Sandbox::User=root "${@:2}"
}
apt_ apt-get update -qq || fail "apt can't read the index of $mirror; see above"

for package in "${@:3}"; do
  record=$(apt_ apt-cache showsrc --only-source "$package" | awk -v RS= 'NR == 1')
  [[ -n $record ]] || fail "$1 has no source package $package"
  [[ ! -e $2/$package ]] || fail "$2/$package is there already"
  directory=$(sed -n 's/^Directory: //p' <<<"$record")
  while read -r sum _ file; do
    python3 - "$mirror/$directory/$file" "$work/download/$file" "$sum" <<'PYTHON' || fail "can't fetch $file"
import hashlib, sys, urllib.request
url, path, expected = sys.argv[1:]
data = urllib.request.urlopen(url, timeout=60).read()
if hashlib.sha256(data).hexdigest() != expected:
    sys.exit(f"{url} has another SHA-256 than Debian's index says")
open(path, "wb").write(data)
PYTHON
  done < <(awk '/^[^ ]/ {there = /^Checksums-Sha256:/} there && /\.tar\.[a-z0-9]+$/' <<<"$record" | sed 's/^ *//')
  mkdir "$work/tree"
  tar -xf "$work/download/$package"_*.orig.tar.* -C "$work/tree"
  top=("$work/tree"/*)  # some have a folder around everything, as dpkg-source knows
  [[ ${#top[@]} == 1 ]] || top=("$work/tree")
  mv "${top[0]}" "$2/$package"
  rm -rf "$work/tree"
  tar -xf "$work/download/$package"_*.debian.tar.* -C "$2/$package"
  series=$2/$package/debian/patches/series
  [[ -e $series ]] || continue
  while read -r name _; do
    [[ -z $name || $name == \#* ]] || patch -d "$2/$package" -p1 --silent --batch <"$2/$package/debian/patches/$name"
  done <"$series"
done
