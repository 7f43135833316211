#!/usr/bin/env bash
# Sets up the peers that `rueda_bench --vs` measures, on Debian 12, and builds our programs for
# them. Does only what is missing.
#
#     test/bench/peers/setup.sh [openmpi] [mpich] [impi] [gloo] [torch] [horovod] [torchft]
#
# Without a name, all. Debian's packages need root or sudo; everything else lies in
# ${XDG_CACHE_HOME:-~/.cache}/rueda/peers: programs in bin, torch, Horovod and matplotlib (for the
# plot) in venv, Intel MPI (from its wheels, 0.4 GB) in impi. Horovod is compiled for 4 minutes.
#
#   RUEDA_PIP_ARGS   further arguments for pip, such as an index that has CPU builds of torch
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
peers="${XDG_CACHE_HOME:-${HOME:?is not set}/.cache}/rueda/peers"
bin="$peers/bin"
venv="$peers/venv"
known="openmpi mpich impi gloo torch horovod torchft"
# The last version of Intel MPI whose wheels bring their own libfabric.
impi_version=2021.18.1
horovod_version=0.28.1
torchft_version=0.2.0

say() { printf 'peers: %s\n' "$*"; }
fail() {
  printf 'peers: %s\n' "$*" >&2
  exit 1
}

# need PACKAGE...: those of Debian.
need() {
  local package missing=() as_root=()
  for package; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] ||
      missing+=("$package")
  done
  [[ ${#missing[@]} != 0 ]] || return 0
  [[ $(id -u) == 0 ]] || as_root=(sudo)
  say "installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

# build PROGRAM SOURCE COMMAND...: when the program is missing or older than its source or timing.h.
build() {
  local program="$bin/$1" source="$here/$2"
  shift 2
  if [[ -x $program && $program -nt $source && $program -nt $here/timing.h ]]; then return; fi
  say "building $program"
  "$@" "$source" -o "$program.new"
  mv "$program.new" "$program"
}

pip_in() {  # ENVIRONMENT ARGUMENT...
  # shellcheck disable=SC2086  # several arguments
  "$1/bin/python3" -m pip "$2" --quiet --disable-pip-version-check ${RUEDA_PIP_ARGS:-} "${@:3}"
}

has_module() { "$venv/bin/python3" -c "import $1" 2>/dev/null; }

setup_openmpi() {
  need gcc libc6-dev openmpi-bin libopenmpi-dev
  build mpi_bench.openmpi mpi_bench.c mpicc.openmpi -O2
}

setup_mpich() {
  need gcc libc6-dev mpich libmpich-dev
  build mpi_bench.mpich mpi_bench.c mpicc.mpich -O2 -Wno-stringop-overflow
}

setup_impi() {
  local impi="$peers/impi"
  need gcc libc6-dev
  [[ -x $impi/bin/python3 ]] || python3 -m venv "$impi"
  if [[ ! -e $impi/lib/libmpi.so || ! -e $impi/include/mpi.h ]]; then
    say "installing Intel MPI $impi_version"
    pip_in "$impi" install --no-deps "impi-rt==$impi_version" "impi-devel==$impi_version"
  fi
  # The compiler gets its libraries before the source: --no-as-needed keeps what isn't used yet.
  build mpi_bench.impi mpi_bench.c gcc -O2 -I"$impi/include" -L"$impi/lib" \
    -Wl,--no-as-needed,-rpath,"$impi/lib" -lmpi
}

setup_gloo() {
  need g++ libgloo-dev
  build gloo_bench gloo_bench.cc g++ -O2 -std=c++17 -Wl,--no-as-needed -lgloo -lpthread
}

setup_torch() {
  RUEDA_VENV="$venv" "$root/third_party/setup.sh"
}

setup_horovod() {
  setup_torch
  if has_module horovod.torch; then return; fi
  need cmake g++ openmpi-bin libopenmpi-dev
  pip_in "$venv" install 'setuptools<81' wheel packaging cffi cloudpickle psutil pyyaml
  local log="$peers/horovod.log" source="$peers/src"
  say "building Horovod $horovod_version: some minutes; $log"
  rm -rf "$source"
  mkdir -p "$source"
  pip_in "$venv" download --no-deps --no-binary :all: --no-build-isolation -d "$source" \
    "horovod==$horovod_version"
  tar -xf "$source/horovod-$horovod_version.tar.gz" -C "$source"
  # It asks for C++14; the headers of torch 2 need more.
  sed -i 's/set(CMAKE_CXX_STANDARD 14)/set(CMAKE_CXX_STANDARD 17)/' \
    "$source/horovod-$horovod_version/"{CMakeLists.txt,horovod/torch/CMakeLists.txt}
  env HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
    HOROVOD_WITH_GLOO=1 HOROVOD_WITH_MPI=1 MAKEFLAGS="-j$(nproc)" \
    "$venv/bin/python3" -m pip install -v --no-deps --no-build-isolation \
    "$source/horovod-$horovod_version" >"$log" 2>&1 ||
    fail "Horovod's build failed; the end of $log: $(tail -n 20 "$log")"
  rm -rf "$source"
}

# Only for elastic_bench.py.
setup_torchft() {
  setup_torch
  has_module torchft || pip_in "$venv" install "torchft==$torchft_version"
}

for peer in "$@"; do
  if [[ $peer == -h || $peer == --help ]]; then
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
    exit 0
  fi
  [[ " $known " == *" $peer "* ]] || fail "unknown peer $peer; there are $known"
done
mkdir -p "$bin"
need python3-venv
[[ -x $venv/bin/python3 ]] || python3 -m venv "$venv"
has_module matplotlib || pip_in "$venv" install matplotlib
# shellcheck disable=SC2086  # words
for peer in ${@:-$known}; do
  "setup_$peer"
  say "$peer is set up"
done
