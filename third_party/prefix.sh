#!/usr/bin/env bash
# Unpacks what Rueda is built with, but a compiler, CMake, torch and CUDA, from Debian 12's packages
# into a folder: for a machine that reaches no package registry, or on which nothing may be
# installed. Run it on a Debian 12 machine, which need not be root's, and take the folder along.
#
#     third_party/prefix.sh FOLDER
#
# There (any Linux with glibc 2.36 or later):
#
#     export RUEDA_PREFIX=FOLDER LD_LIBRARY_PATH=FOLDER/usr/lib/x86_64-linux-gnu
#     cmake --preset release && cmake --build --preset release
#
# LD_LIBRARY_PATH is for protoc, and for programs that are installed; what is built finds the folder
# by itself. Gloo is not among them: libgloo's dependencies are a system of their own.
set -euo pipefail

packages=(
  libabsl-dev libabsl20220623 libgmock-dev libgtest-dev libhwy-dev libhwy1 libprotobuf-dev
  libprotobuf-lite32 libprotobuf32 libprotoc32 libsodium-dev libsodium23 libyaml-cpp-dev libyaml-cpp0.7
  nlohmann-json3-dev protobuf-compiler
)

if [[ $# != 1 || $1 == -* ]]; then
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
  exit 2
fi
fail() {
  echo "prefix: $*" >&2
  exit 1
}
# What lies in a folder of somebody's own is not for this to add to.
marker=.made-by-rueda-prefix
command -v dpkg-deb >/dev/null || fail "this is no Debian: there is no dpkg-deb"
[[ ! -e $1 || -d $1 ]] || fail "$1 is no folder"
if [[ -d $1 && ! -e $1/$marker && -n $(ls -A "$1") ]]; then
  fail "$1 is not empty, and was not made by this; name a new folder"
fi
mkdir -p "$1"
prefix=$(cd "$1" && pwd)
unpacked=$(mktemp -d)
trap 'rm -r "$unpacked"' EXIT
mkdir "$unpacked/packages" "$unpacked/tree"
# In a folder of this user's: apt's own user, whom it would take for that, can't write there.
(cd "$unpacked/packages" && apt-get -o APT::Sandbox::User=root download -qq "${packages[@]}")
for package in "$unpacked/packages"/*.deb; do dpkg-deb -x "$package" "$unpacked/tree"; done

# Archives are not needed where there is a shared library, and are most of the bytes.
find "$unpacked/tree/usr/lib" -name '*.a' | while read -r archive; do
  if [[ -e ${archive%.a}.so ]]; then rm "$archive"; fi
done
rm -rf "$unpacked"/tree/usr/share/{doc,man,lintian} "$unpacked/tree/usr/src"
touch "$prefix/$marker"
# The folder itself keeps its mode.
cp -a "$unpacked"/tree/* "$prefix"
echo "prefix: $(du -sm "$prefix" | cut -f1) MB in $prefix"
