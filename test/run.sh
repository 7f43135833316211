#!/usr/bin/env bash
# Passes the tests, from a fresh clone on: installs what is missing (third_party/setup.sh --tests: the
# launchers of SLURM, Open MPI and MPICH too), builds,
# and runs all parts below; a second run is quick (ccache). The last lines are a table of the parts
# and the counts. Exit status: 0 when nothing failed.
#
#     test/run.sh [--quick] [--no-torch]
#
#   --quick      the release build's tests only, without the sanitizers'
#   --no-torch   do without torch: it isn't installed, and what needs it is not run
#
# The quick checks come first: when they fail the rest is not begun. Later parts go on after a
# failure. The address and the thread sanitizer take turns, commit by commit. Of the cases over real
# processes, and of long unit tests, they run a twelfth, another one each time; test/soak/run.sh runs
# all of them. RUEDA_VENV and RUEDA_PIP_ARGS: see third_party/setup.sh.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

quick=0
torch=1
for option in "$@"; do
  case "$option" in
    --quick) quick=1 ;;
    --no-torch) torch=0 ;;
    -h | --help)
      sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
      exit 0
      ;;
    *)
      echo "run.sh: unknown option $option; there are --quick and --no-torch" >&2
      exit 2
      ;;
  esac
done

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
part_count=0

# part NAME COMMAND...: runs the command and notes its seconds and status, for test/summary.py.
part() {
  local name=$1 status=0 start=$SECONDS
  shift
  part_count=$((part_count + 1))
  current=$(printf '%s/%02d' "$results" "$part_count")
  printf '\n==== %s\n' "$name"
  "$@" </dev/null || status=$?
  printf '%s\t%d\t%d\n' "$name" $((SECONDS - start)) "$status" >"$current.part"
  return "$status"
}

finish() {
  python3 test/summary.py "$results"
  exit
}

build() {  # PRESET
  cmake --preset "$1" && cmake --build --preset "$1"
}

run_tests() {  # PRESET LABELS
  ctest --test-dir "build/$1" -L "^($2)\$" -j2 --timeout 300 --no-tests=error --output-on-failure \
    --output-junit "$current.xml" --test-output-size-passed 1048576 \
    --test-output-size-failed 1048576
}

has_tests() {  # PRESET LABELS
  ! ctest --test-dir "build/$1" -N -L "^($2)\$" | grep -q '^Total Tests: 0$'
}

# A label that no part runs would be a test that nobody runs. `slow` ones are for test/soak.
check_labels() {
  local stray
  stray=$(ctest --test-dir build/release -N \
    -LE '^(lint|unit|package|instructions|multiprocess|torch|python|fault|fuzz|gpu|slow)$' |
    sed -n 's/^ *Test *#[0-9]*: //p')
  [[ -z $stray ]] && return
  echo "no part of test/run.sh runs these; give them a label that one has: $stray" >&2
  return 1
}

setup_options=(--tests --cuda)
[[ $torch == 1 ]] || setup_options+=(--no-torch)
part "set-up" third_party/setup.sh "${setup_options[@]}" || finish
part "release: build" build release || finish
part "labels" check_labels || finish
part "lint" run_tests release lint || finish
part "unit" run_tests release unit
part "package" run_tests release package
part "instructions" run_tests release instructions
part "multiprocess" run_tests release multiprocess
if [[ $torch == 1 ]]; then
  part "torch" run_tests release torch
fi
part "python" run_tests release python
part "gpu: skipped where there is none" run_tests release gpu
if has_tests release 'fault|fuzz'; then
  part "faults and fuzz" run_tests release 'fault|fuzz'
fi
if [[ $quick == 0 ]]; then
  commits=$(git rev-list --count HEAD 2>/dev/null || echo 0)
  sanitizers=(asan tsan)
  sanitizer=${sanitizers[$((commits % 2))]}
  shard=$((commits / 2 % 12))
  if part "$sanitizer: build" build "$sanitizer"; then
    part "$sanitizer: unit" run_tests "$sanitizer" unit
    export GTEST_TOTAL_SHARDS=12 GTEST_SHARD_INDEX=$shard
    part "$sanitizer: long and multiprocess, cases $((shard + 1)) of every 12" run_tests "$sanitizer" 'long|multiprocess'
  fi
fi
finish
