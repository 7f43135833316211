#!/usr/bin/env bash
# shellcheck disable=SC2317
# Builds and runs Rueda as other systems and packagers do. Each of the following is a run of its own:
#
#     test/soak/systems.sh RUN...
#
#   clang      with Clang 16: the unit tests, and jobs of two ranks. (The tests need _Float16, which Clang 14 lacks.)
#   debian13   in a Debian 13 root, with its GCC 14, Abseil 20240722 and Gloo: the unit tests, and jobs of two ranks
#   deb        a package by CPack, installed into a Debian 12 root that has nothing else: a program is built with it,
#              and run on two ranks
#   wheel      bindings/python/wheel.sh from an sdist; the wheel's tests here, and a C program with its
#              library in a Debian 11 root (glibc 2.31)
#
# All but clang need root, and debootstrap. Roots are kept in ${XDG_CACHE_HOME:-~/.cache}/rueda/roots. Prints a line per
# run; exit status 1 when one failed. RUEDA_DEBIAN_MIRROR names another mirror than http://deb.debian.org/debian.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/rueda
mirror=${RUEDA_DEBIAN_MIRROR:-http://deb.debian.org/debian}
jobs=$(nproc)
work=$(mktemp -d)
there=$work/root
clean_up() {
  ! mountpoint -q "$there" || umount -R "$there" || true
  rm -rf --one-file-system "$work"
}
trap clean_up EXIT
fail() {
  printf 'systems: %s\n' "$*" >&2
  exit 2
}

# new_root RELEASE [PACKAGE...]: an overlay over that release of Debian, empty but for the packages, as $there.
# It has this tree's files as they were committed, in /rueda.
new_root() {
  local base=$cache/roots/$1
  [[ $(id -u) == 0 ]] || fail "$1 needs root, for debootstrap and chroot"
  command -v debootstrap >/dev/null || fail "there is no debootstrap: apt-get install debootstrap"
  [[ -e $base/etc/debian_version && ! -d $base/debootstrap ]] || {
    rm -rf "$base"
    mkdir -p "$base"
    debootstrap --variant=minbase --include=ca-certificates "$1" "$base" "$mirror"
  }
  ! mountpoint -q "$there" || umount -R "$there"
  rm -rf "$work/upper" "$work/lower"
  mkdir -p "$there" "$work"/{upper,lower}
  mount -t overlay overlay -o "lowerdir=$base,upperdir=$work/upper,workdir=$work/lower" "$there"
  mount -t proc proc "$there/proc"
  mount --bind /dev "$there/dev"
  cp /etc/resolv.conf "$there/etc/"
  inside apt-get update -qq
  inside apt-get install -y -qq --no-install-recommends "${@:2}"
  mkdir "$there/rueda"
  git archive HEAD | tar -x -C "$there/rueda"
}
inside() { chroot "$there" env HOME=/root DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 "$@"; }

# The unit tests of a build folder, and jobs of two ranks on one host and on two.
check() {
  "${@:2}" ctest --test-dir "$1" -L '^unit$' -j "$jobs" --output-on-failure
  "${@:2}" "$1/bin/ruedarun" -np 2 "$1/bin/hello"
  "${@:2}" env RUEDA_HOSTS_FAKE=2 RUEDA_INLINE_BYTES=0 "$1/bin/ruedarun" -np 2 "$1/bin/hello"
}

run_clang() {
  command -v clang++-16 >/dev/null || fail "there is no clang++-16: apt-get install clang-16"
  cmake -G Ninja -S . -B build/clang -DCMAKE_C_COMPILER=clang-16 -DCMAKE_CXX_COMPILER=clang++-16 \
    -DRUEDA_TORCH=OFF -DRUEDA_CUDA=OFF
  cmake --build build/clang
  check build/clang
}

run_debian13() {
  new_root trixie git python3
  inside /rueda/third_party/setup.sh --no-torch
  inside cmake -G Ninja -S /rueda -B /rueda/build -DRUEDA_TORCH=OFF -DRUEDA_CUDA=OFF
  inside cmake --build /rueda/build
  check /rueda/build inside
}

run_deb() {
  local multiarch
  multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
  cmake -G Ninja -S . -B build/deb -DCMAKE_INSTALL_PREFIX=/usr "-DCMAKE_INSTALL_LIBDIR=lib/$multiarch" \
    -DRUEDA_TORCH=OFF -DRUEDA_CUDA=OFF -DRUEDA_TESTS=OFF -DRUEDA_EXAMPLES=OFF
  cmake --build build/deb
  rm -f build/deb/*.deb
  (cd build/deb && cpack -G DEB -D CPACK_PACKAGE_CONTACT="A packager <packager@localhost>")
  dpkg-deb --info build/deb/*.deb
  new_root bookworm
  cp build/deb/*.deb "$there/"
  inside sh -c 'apt-get install -y -qq --no-install-recommends /*.deb'
  inside ruedarun --check-build
  inside apt-get install -y -qq --no-install-recommends cmake g++ make
  inside cmake -S /rueda/test/package/cpp -B /program
  inside cmake --build /program
  for backend in shm gloo; do
    inside env "RUEDA_BACKEND=$backend" ruedarun -np 2 /program/average
  done
  inside apt-get remove -y -qq rueda
  [[ -z $(find "$there/usr" -name '*rueda*') ]] || fail "the package leaves files behind"
}

run_wheel() {
  local python=${RUEDA_VENV:-$cache/venv}/bin/python wheel
  rm -rf build/dist
  "$python" -c 'import scikit_build_core.build as build; build.build_sdist("build/dist")'
  wheel=$(bindings/python/wheel.sh build/dist build/dist/*.tar.gz)
  test/python/wheel_test.sh "$python" "$work" "$wheel"
  # Debian 11's own Python is 3.9, too old for the package: a C program uses what is in the wheel.
  new_root bullseye gcc libc6-dev
  mkdir "$there/wheel"
  "$python" -m zipfile -e "$wheel" "$there/wheel"
  chmod +x "$there/wheel/rueda/bin/ruedarun"
  ln -s librueda.so "$there/wheel/rueda/lib/$(readelf -d "$there/wheel/rueda/lib/librueda.so" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')"
  inside gcc -I/rueda/bindings/c/include /rueda/test/package/c/sum.c -o /sum \
    -L/wheel/rueda/lib -lrueda -lm -Wl,-rpath,/wheel/rueda/lib
  inside /wheel/rueda/bin/ruedarun --check-build
  for backend in shm gloo; do
    inside env "RUEDA_BACKEND=$backend" /wheel/rueda/bin/ruedarun -np 2 /sum
  done
}

if [[ ${1:-} == --one ]]; then  # the others would run under `if`, where bash passes over errors
  "run_$2"
  exit
fi
case "${1:-}" in -h | --help) sed -n '3,/^set /{/^#/s/^# \{0,1\}//p}' "$0" && exit 0 ;; esac
[[ $# -gt 0 && $1 != -* ]] || { sed -n '3,/^set /{/^#/s/^# \{0,1\}//p}' "$0" && exit 2; }
for run in "$@"; do
  [[ $(type -t "run_$run") == function ]] || fail "there is no run $run; --help lists them"
done
mkdir -p build
failed=0
for run in "$@"; do
  start=$SECONDS
  if "$root/test/soak/systems.sh" --one "$run" >"build/soak-$run.log" 2>&1; then
    printf '%-10s passed, %d s\n' "$run" $((SECONDS - start))
  else
    tail -n 60 "build/soak-$run.log"
    printf '%-10s FAILED, %d s: build/soak-%s.log\n' "$run" $((SECONDS - start)) "$run"
    failed=1
  fi
done
exit "$failed"
