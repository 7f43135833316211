#!/usr/bin/env bash
# Runs the examples of examples/integrations on two ranks, with Gloo and with Rueda alternating,
# and prints the times of their training steps: Hugging Face Accelerate, the Trainer of
# Transformers, and Ray Train. An example fails if the replicas differ at the end, if the loss
# has not fallen, or if the process group has another backend.
#
#     test/soak/integrations.sh [ROUNDS] [--preset PRESET]
#
#   ROUNDS     3 by default
#   --preset   which build: release by default
#
#   RUEDA_VENV      the virtual environment of third_party/setup.sh
#   RUEDA_PIP_ARGS  further arguments for pip
#
# The first run makes a virtual environment in ${XDG_CACHE_HOME:-~/.cache}/rueda/integrations: 0.7
# GB on disk. It has the packages that are named below, and sees torch and all others of setup.sh's
# environment. Later runs need no network.
#
# Exit status: 0 if all runs passed, 1 if one failed, 2 if they can't start.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."

packages=("accelerate==1.15.0" "transformers==5.24.0" "ray[train]==2.60.0")
examples=(accelerate trainer ray)
limit_s=900 # of a run; it takes about half a minute on an idle machine

fail() {
  printf 'integrations: %s\n' "$*" >&2
  exit 2
}

rounds=3
preset=release
while [[ $# -gt 0 ]]; do
  case "$1" in
    -h | --help)
      sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
      exit 0
      ;;
    --preset)
      preset=${2:?--preset takes a name}
      shift 2
      ;;
    *)
      rounds=$1
      shift
      ;;
  esac
done
[[ $rounds =~ ^[1-9][0-9]*$ ]] || fail "expected a number of rounds, got '$rounds'"
build=$PWD/build/$preset
[[ -d $build/python/rueda ]] ||
  fail "$build has no Python package: cmake --workflow --preset $preset"

cache="${XDG_CACHE_HOME:-${HOME:?is not set}/.cache}/rueda"
base="${RUEDA_VENV:-$cache/venv}"
"$base/bin/python3" -c 'import torch' 2>/dev/null ||
  fail "$base has no torch: third_party/setup.sh installs it"
version=$("$base/bin/python3" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
venv=$cache/integrations/$version
python=$venv/bin/python3

# Whether it has all packages at these versions. pip installs what they need before them.
is_complete() {
  "$python" - "${packages[@]}" 2>/dev/null <<'PYTHON'
import importlib.metadata, sys
for package in sys.argv[1:]:
    name, _, version = package.partition("==")
    assert importlib.metadata.version(name.partition("[")[0]) == version
PYTHON
}

install() {
  printf 'installing %s in %s\n' "${packages[*]}" "$venv"
  [[ -x $python ]] || "$base/bin/python3" -m venv "$venv" ||
    fail "python3 -m venv failed; is python3-venv of $base/bin/python3 installed?"
  # Another environment's packages come after its own.
  printf '%s\n' "$base/lib/python$version/site-packages" \
    >"$venv/lib/python$version/site-packages/of_setup.pth"
  # shellcheck disable=SC2086  # several arguments
  "$python" -m pip install --quiet --disable-pip-version-check ${RUEDA_PIP_ARGS:-} \
    "${packages[@]}" || fail "pip can't install them. RUEDA_PIP_ARGS is passed on to pip"
}

is_complete || install

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export PYTHONPATH=$build/python OMP_NUM_THREADS=1
# No network; and Ray is not to end workers because other programs use the memory.
export HF_HUB_OFFLINE=1 RAY_USAGE_STATS_ENABLED=0 RAY_memory_monitor_refresh_ms=0
export RAY_TMPDIR=$scratch

# run EXAMPLE BACKEND: adds its step time to $scratch/times.
run() {
  local program=examples/integrations/$1_train.py command result
  command=("$python" "$program" "$2")
  [[ $1 == ray ]] ||
    command=("$python" -m torch.distributed.run --standalone --nproc-per-node 2 "$program" "$2")
  if ! timeout --foreground --kill-after 30 "$limit_s" "${command[@]}" >"$scratch/log" 2>&1 ||
    ! result=$(grep "^backend=$2 .* replicas_equal=true" "$scratch/log"); then
    tail -n 100 "$scratch/log"
    printf 'FAILED: %s. Again: PYTHONPATH=%s %s\n' "$program $2" "$PYTHONPATH" "${command[*]}"
    exit 1
  fi
  printf '%-10s %s\n' "$1" "$result"
  printf '%s %s %s\n' "$1" "$2" "${result##*step_ms=}" >>"$scratch/times"
}

for ((round = 1; round <= rounds; ++round)); do
  backends=(gloo rueda)
  ((round % 2)) || backends=(rueda gloo)
  for example in "${examples[@]}"; do
    for backend in "${backends[@]}"; do
      run "$example" "$backend"
    done
  done
done

printf '\nMedian step times in ms on 2 ranks, %d cores, %d rounds; ratios are of pairs of runs\n' \
  "$(env -u OMP_NUM_THREADS nproc)" "$rounds"
"$python" - "$scratch/times" <<'PYTHON'
import statistics, sys
times = {}
for line in open(sys.argv[1]):
    example, backend, ms = line.split()
    times.setdefault(example, {}).setdefault(backend, []).append(float(ms))
print(f"{'':10} {'Gloo':>8} {'Rueda':>8} {'Rueda / Gloo':>13} {'worst ratio':>12}")
for example, of in times.items():
    ratios = [rueda / gloo for rueda, gloo in zip(of["rueda"], of["gloo"])]
    gloo, rueda = (statistics.median(of[backend]) for backend in ("gloo", "rueda"))
    ratio = statistics.median(ratios)
    print(f"{example:10} {gloo:8.1f} {rueda:8.1f} {ratio:13.2f} {max(ratios):12.2f}")
PYTHON
printf '%d runs passed in %d seconds\n' "$((rounds * 2 * ${#examples[@]}))" "$SECONDS"
