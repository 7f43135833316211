#!/usr/bin/env bash
# Repeats the tests over real processes and the simulator, each round with another seed and order,
# until time is up. Stops at the first failure and says how to repeat it.
#
#     test/soak/run.sh [MINUTES] [--preset PRESET] [--seed SEED] [--failures]
#
#   MINUTES     30 by default; the round that is under way is finished
#   --failures  first refuses each call that a start, some operations and an end make, once, in all
#               setups of every_failure_test: eight processes at once, each with a limit of 4 hours
#   --preset    which build: release by default
#   --seed      the first round's, 1 to 99999; else by chance
#
# All tests with ctest's labels long, multiprocess, torch, fault and slow take part. Prints a line a round, and
# at the end how many rounds of each passed. Exit status: 0 when nothing failed.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."

fail() {
  printf 'soak: %s\n' "$*" >&2
  exit 2
}

minutes=30
preset=release
seed=$((RANDOM * 3 + 1))
failures=0
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
    --failures)
      failures=1
      shift
      ;;
    --seed)
      seed=${2:?--seed takes a number}
      shift 2
      ;;
    *)
      minutes=$1
      shift
      ;;
  esac
done
[[ $minutes =~ ^[0-9]+$ ]] || fail "'$minutes' is no number of minutes"
[[ $seed =~ ^[0-9]+$ ]] && ((seed >= 1 && seed <= 99999)) || fail "a seed is from 1 to 99999"
build=build/$preset
[[ -x $build/bin/rueda_sim ]] || fail "there is no build in $build: cmake --workflow --preset $preset"

mapfile -t tests < <({ ctest --test-dir "$build" -N -L '^(long|multiprocess|torch|fault|slow)$' &&
  ctest --test-dir "$build" -N -R '^python_torchft_test$'; } |
  sed -n 's/^ *Test *#[0-9]*: //p')
[[ ${#tests[@]} -gt 0 ]] || fail "$build has no such test"

export TEST_ELASTIC_KILLS=500  # in a row, of elastic_test
export TEST_ELASTIC_HOST_KILLS=100  # the same between hosts

declare -A passed
rounds=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

report() {
  local name
  printf '\n%-28s rounds passed\n' ""
  for name in every_failure simulator "${tests[@]}"; do
    printf '%-28s %6d\n' "$name" "${passed[$name]:-0}"
  done
  printf '%d seconds\n' "$SECONDS"
}

# try NAME COMMAND...: stops everything when the command fails.
try() {
  local name=$1 start=$SECONDS
  shift
  if ! "$@" >"$log" 2>&1; then
    tail -n 200 "$log"
    report
    printf 'FAILED: %s, seed %d. Again: test/soak/run.sh 0 --preset %s --seed %d\n' \
      "$name" "$seed" "$preset" "$seed"
    exit 1
  fi
  passed[$name]=$((${passed[$name]:-0} + 1))
  times+=" $name $((SECONDS - start)) s"
}

# A hundred jobs of each layout, then a large one.
simulate() {
  local layout
  for layout in "--ranks 8" "--ranks 8 --ranks-per-host 2" "--ranks 6 --ranks-per-host 1" \
    "--ranks 12 --ranks-per-host 4 --log-words 64"; do
    # shellcheck disable=SC2086  # several options
    "$build/bin/rueda_sim" $layout --seed "${seed}000" --seeds 100 || return 1
  done
  "$build/bin/rueda_sim" --ranks 400 --ranks-per-host 8 --steps 2 --seed "${seed}000"
}

# Eight at once, as most of a trial may be a wait for the time-out of a start. Each that fails says
# its last failures.
every_failure() {
  local i status=0 searches=() said
  said=$(mktemp -d)
  for i in {1..8}; do
    SOAK_FAILURES=$i/8 timeout 4h "$build/test/every_failure_test" >"$said/$i" 2>&1 &
    searches+=($!)
  done
  for i in {1..8}; do
    wait "${searches[i - 1]}" && continue
    status=1
    grep -A 12 -e ': Failure$' "$said/$i" | tail -n 20
    tail -n 1 "$said/$i"
  done
  rm -r "$said"
  return "$status"
}

times=""
if ((failures)); then
  try every_failure every_failure
  printf 'every failure:%s\n' "$times"
fi

end=$((SECONDS + 60 * minutes))
while :; do
  times=""
  try simulator simulate
  for name in "${tests[@]}"; do
    # GoogleTest takes the order of its cases from the seed, and some tests their choices.
    try "$name" env GTEST_SHUFFLE=1 GTEST_RANDOM_SEED="$seed" SOAK_PROPERTY_ROUNDS=10 \
      SOAK_NAMES_ITERATIONS=5 SOAK_STRANGERS=200000 SOAK_SCRIPTS=1 SOAK_TORCHFT=1 SOAK_RESET_KILLS=100 \
      SOAK_NETWORK_OPERATIONS=2000 NETWORK_SEED="$seed" \
      ctest --test-dir "$build" -R "^$name\$" --timeout 900 --no-tests=error --output-on-failure
  done
  rounds=$((rounds + 1))
  printf 'round %d, seed %d:%s\n' "$rounds" "$seed" "$times"
  ((SECONDS < end)) || break
  seed=$((seed % 99999 + 1))
done
report
printf '%d rounds passed\n' "$rounds"
