#!/usr/bin/env bash
# Makes a sysroot for 64-bit Arm: unpacks Debian 12's arm64 packages, what Rueda is built with and
# the C library, into a folder. It installs nothing, and needs not be root's.
#
#     third_party/sysroot.sh FOLDER
#
# It runs on a Debian 12 machine, with its sources of packages. A compiler and an emulator:
# apt-get install --no-install-recommends g++-aarch64-linux-gnu qemu-user. Then:
#
#     RUEDA_SYSROOT=FOLDER cmake --workflow --preset arm64
#
# A second run replaces the folder.
set -euo pipefail

packages=(
  libabsl-dev libc6-dev libgloo-dev libgmock-dev libgtest-dev libhwy-dev libprotobuf-dev
  libsodium-dev libstdc++-12-dev libyaml-cpp-dev nlohmann-json3-dev
)

if [[ $# != 1 || $1 == -* ]]; then
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
  exit 2
fi
fail() {
  echo "sysroot: $*" >&2
  exit 1
}
# A folder that this did not make may hold something else.
marker=.made-by-rueda-sysroot
command -v dpkg-deb >/dev/null || fail "this is no Debian: there is no dpkg-deb"
[[ ! -e $1 || -d $1 ]] || fail "$1 is no folder"
if [[ -d $1 && ! -e $1/$marker && -n $(ls -A "$1") ]]; then
  fail "$1 is not empty, and was not made by this; name a new folder"
fi
mkdir -p "$1"
sysroot=$(cd "$1" && pwd)

# apt-get with folders and an architecture of its own: it does not see what is installed.
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
mkdir -p "$work"/state/lists/partial "$work"/cache/archives/partial "$work/tree"
touch "$work/state/status"
cat >"$work/apt.conf" <<CONF
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "root";
Dir::State "$work/state";
Dir::State::status "$work/state/status";
Dir::Cache "$work/cache";
CONF
export APT_CONFIG=$work/apt.conf
apt-get update -qq || fail "apt-get update failed; see above"
apt-get install -qq --yes --download-only --no-install-recommends "${packages[@]}" ||
  fail "apt-get can't fetch the arm64 packages; see above"
for package in "$work"/cache/archives/*.deb; do dpkg-deb -x "$package" "$work/tree"; done

# Links from the root would lead out of the sysroot.
find "$work/tree" -lname '/*' | while read -r link; do
  ln -snfr "$work/tree$(readlink "$link")" "$link"
done
rm -rf "$work"/tree/usr/share/{bash-completion,doc,info,lintian,locale,man,perl5} "$work/tree/var"
find "$sysroot" -mindepth 1 -delete
cp -a "$work"/tree/* "$sysroot"
touch "$sysroot/$marker"
echo "sysroot: $(du -sm "$sysroot" | cut -f1) MB in $sysroot"
