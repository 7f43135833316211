#!/usr/bin/env bash
# Measures Rueda and its peers, interleaved; appends JSON lines to a file for table.py.
#
#     test/bench/peers/run.sh RESULTS.jsonl
#
#   ROUNDS   how often to measure everything; default 5
#   NPS      numbers of ranks; default "2 4"
#   SIZES    bytes; default "4 4096 65536 1048576 16777216 67108864 268435456"
#
# What is not installed (mpirun.openmpi, Gloo, torch) is left out, and says so.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
if [[ $# != 1 || $1 == -* ]]; then
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
  exit 2
fi
results=$1
rounds=${ROUNDS:-5}
nps=${NPS:-2 4}
sizes=${SIZES:-4 4096 65536 1048576 16777216 67108864 268435456}
bin="$root/build/release/bin"
peers="$root/build/peers"
python="${RUEDA_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/rueda/venv}/bin/python3"
mkdir -p "$peers"
export OMP_NUM_THREADS=1 OMPI_MCA_mpi_yield_when_idle=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

say() { printf 'peers: %s\n' "$*" >&2; }

[[ -x $bin/rueda_bench ]] || { say "build first: cmake --workflow --preset release"; exit 1; }
have_mpi=0 have_gloo=0 have_torch=0
if command -v mpicc.openmpi mpirun.openmpi >/dev/null; then
  mpicc.openmpi -O2 -o "$peers/mpi_bench" "$here/mpi_bench.c" && have_mpi=1
else
  say "no Open MPI (openmpi-bin, libopenmpi-dev): left out"
fi
if [[ -e /usr/include/gloo/context.h ]]; then
  g++ -O2 -std=c++17 -o "$peers/gloo_bench" "$here/gloo_bench.cc" -lgloo -lpthread && have_gloo=1
else
  say "no Gloo (libgloo-dev): left out"
fi
if [[ -x $python ]] && "$python" -c 'import torch' 2>/dev/null; then
  have_torch=1
else
  say "no torch (third_party/setup.sh): left out"
fi

real_time=()
scheduling="ordinary scheduling"
if chrt -r 1 true 2>/dev/null; then
  real_time=(chrt -r 1)
  scheduling="real-time scheduling (chrt -r 1)"
fi
say "$scheduling"

go() {
  # </dev/null: mpirun reads its standard input.
  timeout 300 "${real_time[@]}" "$@" </dev/null | grep '^{' >>"$results" || say "failed: $*"
}

cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
printf '{"op": "about", "cpu": "%s", "cores": %d, "date": "%s", "scheduling": "%s"}\n' \
  "$cpu" "$(getconf _NPROCESSORS_ONLN)" "$(date -u +%F)" "$scheduling" >>"$results"
list=${sizes// /,}
for ((round = 1; round <= rounds; ++round)); do
  for np in $nps; do
    say "round $round of $rounds, $np ranks"
    rueda=("$bin/ruedarun" -np "$np" --prefix none "$bin/rueda_bench" --json)
    go "${rueda[@]}" --bytes "$list"
    go "${rueda[@]}" --bytes "$list" --registered
    go "${rueda[@]}" --many 200x4K --many 500x1K --many 50x256K
    # shellcheck disable=SC2086  # sizes are words
    if ((have_mpi)); then
      go mpirun.openmpi --oversubscribe -np "$np" "$peers/mpi_bench" openmpi $sizes
    fi
    if ((have_gloo)); then
      for algorithm in ring halving_doubling; do
        # shellcheck disable=SC2086
        go "$peers/gloo_bench" "$np" "$algorithm" $sizes
      done
    fi
    if ((have_torch)); then
      # shellcheck disable=SC2086
      go "$python" "$here/torch_bench.py" "$np" $sizes
      go "$python" "$here/torch_bench.py" "$np" many 200 4096
      go "$python" "$here/torch_bench.py" "$np" many 500 1024
      go "$python" "$here/torch_bench.py" "$np" many 50 262144
    fi
  done
done
