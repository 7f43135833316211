#!/usr/bin/env bash
# Passes the tests, from a fresh clone on: installs what is missing (third_party/setup.sh --tests: the
# launchers of SLURM, Open MPI and MPICH too), builds,
# and runs all parts below; a second run is quick (ccache). The last lines are a table of the parts
# and the counts. Exit status: 0 when nothing failed.
#
#     test/run.sh [--quick] [--all] [--no-torch]
#
#   --quick      the release build's tests only, without the sanitizers'
#   --all        every case over real processes, instead of every fourth
#   --no-torch   do without torch: it isn't installed, and what needs it is not run
#
# The quick checks come first: when they fail the rest is not begun. Later parts go on after a
# failure. What would take over an hour takes turns, commit by commit: of the cases over real
# processes (labels multiprocess and torch) the release build runs a quarter, and either the address
# or the thread sanitizer a sixteenth of them and of long unit tests. test/soak/run.sh runs all of
# them. RUEDA_VENV and RUEDA_PIP_ARGS: see third_party/setup.sh.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

quick=0
all=0
torch=1
for option in "$@"; do
  case "$option" in
    --quick) quick=1 ;;
    --all) all=1 ;;
    --no-torch) torch=0 ;;
    -h | --help)
      sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
      exit 0
      ;;
    *)
      echo "run.sh: unknown option $option; there are --quick, --all and --no-torch" >&2
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

# run_share PRESET LABELS COUNT TURN: of the GoogleTest cases one of every COUNT.
run_share() {
  GTEST_TOTAL_SHARDS=$3 GTEST_SHARD_INDEX=$(($4 % $3)) run_tests "$1" "$2"
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

# Whose turn it is: another commit, another share, in a shallow clone too.
turn=$((16#$(git rev-parse --short=7 HEAD 2>/dev/null || echo 0)))
share=4
[[ $all == 1 ]] && share=1

setup_options=(--tests --cuda)
[[ $torch == 1 ]] || setup_options+=(--no-torch)
part "set-up" third_party/setup.sh "${setup_options[@]}" || finish
part "release: build" build release || finish
part "labels" check_labels || finish
part "lint" run_tests release lint || finish
part "unit" run_tests release unit
part "package" run_tests release package
part "instructions" run_tests release instructions
part "multiprocess, 1 of $share cases" run_share release multiprocess "$share" $((turn / 32))
if [[ $torch == 1 ]]; then
  part "torch, 1 of $share cases" run_share release torch "$share" $((turn / 32))
fi
part "python" run_tests release python
part "gpu: skipped where there is none" run_tests release gpu
if has_tests release 'fault|fuzz'; then
  part "faults and fuzz" run_tests release 'fault|fuzz'
fi
if [[ $quick == 0 ]]; then
  sanitizers=(asan tsan)
  sanitizer=${sanitizers[$((turn % 2))]}
  if part "$sanitizer: build" build "$sanitizer"; then
    part "$sanitizer: unit" run_tests "$sanitizer" unit
    part "$sanitizer: long and multiprocess, 1 of 16 cases" \
      run_share "$sanitizer" 'long|multiprocess' 16 $((turn / 2))
  fi
fi
finish
