#!/usr/bin/env bash
# Builds the libraries that Rueda links as static ones for an older glibc, from Debian 13's source
# packages, so that a wheel runs on the systems that people have. bindings/python/wheel.sh calls it.
#
#     third_party/static.sh FOLDER [ARCHITECTURE]
#
#   FOLDER         gets bin (compilers: cc, c++), lib, include, licenses. What an unchanged script
#                  has built stays: remove the folder for newer sources
#   ARCHITECTURE   x86_64 (the default) or aarch64
#
#   RUEDA_DEBIAN_MIRROR   as third_party/debian_source.sh has it
#   RUEDA_PIP_ARGS        further arguments for pip, which installs the compiler (zig)
#
# Needs third_party/setup.sh's virtual environment, Debian's apt, autoconf, automake, CMake, libtool, make,
# Ninja, patch and protoc 3.21, and no root.
set -euo pipefail

zig_version=0.17.1
glibc=2.28  # what manylinux_2_28 has: RHEL 8, Ubuntu 20.04, Debian 11 and all later ones
packages=(abseil gloo highway libsodium nlohmann-json3 protobuf yaml-cpp)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

if [[ $# -lt 1 || $1 == -* ]]; then
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
  exit 2
fi
say() { printf 'static: %s\n' "$*" >&2; }
fail() {
  say "$*"
  exit 1
}
architecture=${2:-x86_64}
[[ $architecture =~ ^(x86_64|aarch64)$ ]] || fail "there is no build for $architecture, but for x86_64 and aarch64"
for tool in autoreconf cmake libtoolize make ninja protoc; do
  command -v "$tool" >/dev/null ||
    fail "there is no $tool: apt-get install autoconf automake cmake libtool make ninja-build protobuf-compiler"
done
mkdir -p "$1"
prefix=$(cd "$1" && pwd)
# What another version of this script has built is not used. A folder of somebody's own is left alone.
marker=$prefix/.made-by-rueda-static
made_by=$(sha256sum "${BASH_SOURCE[0]}")
made_by=${made_by%% *}
if [[ ! -e $marker && -n $(ls -A "$prefix") ]]; then
  fail "$prefix is not empty, and was not made by this; name a new folder"
elif [[ ! -e $marker || $(cat "$marker") != "$made_by" ]]; then
  find "$prefix" -mindepth 1 -delete
  echo "$made_by" >"$marker"
fi
[[ ! -e $prefix/built/all ]] || exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The compiler: clang with a libc++ that is linked statically and stubs of each glibc.
install_zig() {
  [[ -x $prefix/zig/ziglang/zig ]] || {
    # shellcheck disable=SC2086  # several arguments
    "${RUEDA_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/rueda/venv}/bin/python3" -m pip install --quiet --disable-pip-version-check ${RUEDA_PIP_ARGS:-} \
      --target "$prefix/zig" "ziglang==$zig_version" || fail "pip can't install ziglang $zig_version; see above"
  }
  mkdir -p "$prefix"/{bin,built,licenses}
  cp "$prefix/zig/ziglang/lib/libcxx/LICENSE.TXT" "$prefix/licenses/libc++"
  cp "$prefix/zig/ziglang/LICENSE" "$prefix/licenses/zig"
  local name command
  for name in cc c++ ar ranlib; do
    command="$name"
    [[ $name != c* ]] || command="$name -target $architecture-linux-gnu.$glibc"
    printf '#!/bin/sh\nexec "%s/zig/ziglang/zig" %s "$@"\n' "$prefix" "$command" >"$prefix/bin/$name"
    chmod +x "$prefix/bin/$name"
  done
}

# build PACKAGE WAY [ARGUMENT...]: unless it was. WAY is one of the two below.
build() {
  [[ ! -e $prefix/built/$1 ]] || return 0
  say "$1"
  if ! "$2" "$1" "${@:3}" >"$work/log" 2>&1; then
    tail -n 50 "$work/log" >&2
    fail "$1 does not build; see above"
  fi
  touch "$prefix/built/$1"
}

with_cmake() {
  cmake -G Ninja -S "$work/$1" -B "$work/$1-build" -Wno-dev \
    -DCMAKE_TOOLCHAIN_FILE="$prefix/toolchain.cmake" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
    -DCMAKE_CXX_STANDARD=20 -DBUILD_SHARED_LIBS=OFF -DBUILD_TESTING=OFF -DCMAKE_POLICY_VERSION_MINIMUM=3.5 \
    "${@:2}" &&
    ninja -C "$work/$1-build" install
}

with_autotools() (
  cd "$work/$1" && autoreconf --install &&
    ./configure --host="$architecture-linux-gnu" --prefix="$prefix" --disable-shared --with-pic --quiet \
      CC="$prefix/bin/cc" AR="$prefix/bin/ar" RANLIB="$prefix/bin/ranlib" CFLAGS=-O3 &&
    make -s -j"$(nproc)" -C src install
)

install_zig
cat >"$prefix/toolchain.cmake" <<END
# Written by third_party/static.sh.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR $architecture)
set(CMAKE_C_COMPILER "$prefix/bin/cc")
set(CMAKE_CXX_COMPILER "$prefix/bin/c++")
set(CMAKE_AR "$prefix/bin/ar" CACHE FILEPATH "")
set(CMAKE_RANLIB "$prefix/bin/ranlib" CACHE FILEPATH "")
set(CMAKE_FIND_ROOT_PATH "$prefix")
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
END
"$here/debian_source.sh" trixie "$work" "${packages[@]}"
for package in "${packages[@]}"; do cp "$work/$package/debian/copyright" "$prefix/licenses/$package"; done
# zig has clang's -march by the name -mcpu.
sed -i 's/-march=armv8-a+crypto/-mcpu=generic+crypto/' "$work/abseil/absl/copts/GENERATED_AbseilCopts.cmake"
grep -q mcpu=generic+crypto "$work/abseil/absl/copts/GENERATED_AbseilCopts.cmake" || fail "Abseil's flags for Arm have changed"
build abseil with_cmake -DABSL_PROPAGATE_CXX_STD=ON
# Debian's patch for architectures that need libatomic: zig's linker knows no such flags.
sed -i -E 's/;?-Wl,--push-state,--as-needed;(-latomic|\\\$<LINK_ONLY:-latomic>);-Wl,--pop-state//g' \
  "$prefix/lib/cmake/absl/abslTargets.cmake"
! grep -q latomic "$prefix/lib/cmake/absl/abslTargets.cmake" || fail "Abseil's package asks for libatomic in another way"
build protobuf with_cmake -Dprotobuf_BUILD_TESTS=OFF -Dprotobuf_BUILD_PROTOC_BINARIES=OFF -Dprotobuf_WITH_ZLIB=OFF
build yaml-cpp with_cmake -DYAML_CPP_BUILD_TESTS=OFF -DYAML_CPP_BUILD_TOOLS=OFF
build highway with_cmake -DHWY_ENABLE_TESTS=OFF -DHWY_ENABLE_EXAMPLES=OFF -DHWY_ENABLE_CONTRIB=OFF
build nlohmann-json3 with_cmake -DJSON_BuildTests=OFF
# ops/gloo/peer_name.cc stands in for this function, as it does before the shared library.
sed -i 's/^Address Address::fromPeerName/__attribute__((weak)) &/' "$work/gloo/gloo/transport/tcp/address.cc"
grep -q '^__attribute__((weak)) Address' "$work/gloo/gloo/transport/tcp/address.cc" || fail "Gloo has changed"
build gloo with_cmake -DUSE_LIBUV=OFF
build libsodium with_autotools
touch "$prefix/built/all"
