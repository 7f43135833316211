#!/usr/bin/env bash
# What needs a CUDA device, from a fresh clone on a machine that has one: builds, runs the tests with the
# label gpu (some of them again under compute-sanitizer, where that is installed), then the benchmarks.
# Exit status: 0 when all of it ran and nothing failed. Write what ran, and on which device, into docs/guides/gpu.md.
#
#     test/gpu.sh [--build] [--tests] [--sanitizer] [--bench]      all of them, if none is named
#
# Installs nothing: the compilers, CMake, ninja, NCCL and torch are the machine's. What else Rueda is
# built with may come from a folder (third_party/prefix.sh makes it elsewhere): RUEDA_PREFIX.
# RUEDA_VENV: the Python environment that has torch and NCCL's header; default: the one of python3.
set -uo pipefail

began_in=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

parts=()
for option in "$@"; do
  case "$option" in
    --build | --tests | --sanitizer | --bench) parts+=("${option#--}") ;;
    -h | --help)
      sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
      exit 0
      ;;
    *)
      echo "gpu.sh: unknown option $option; there are --build, --tests, --sanitizer and --bench" >&2
      exit 2
      ;;
  esac
done
[[ ${#parts[@]} -gt 0 ]] || parts=(build tests sanitizer bench)

wants() { [[ " ${parts[*]} " == *" $1 "* ]]; }

fail() {
  printf 'gpu.sh: %s\n' "$*" >&2
  exit 1
}

build=build/gpu
if [[ -n ${RUEDA_PREFIX:-} ]]; then
  folder=$(cd "$began_in" && cd "$RUEDA_PREFIX" 2>/dev/null && pwd) ||
    fail "RUEDA_PREFIX=$RUEDA_PREFIX: there is no such folder; third_party/prefix.sh makes one"
  RUEDA_PREFIX=$folder
  export RUEDA_PREFIX
  libraries="$RUEDA_PREFIX/usr/lib/$(uname -m)-linux-gnu"
  export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
if [[ -n ${RUEDA_VENV:-} ]]; then
  folder=$(cd "$began_in" && cd "$RUEDA_VENV" 2>/dev/null && pwd) ||
    fail "RUEDA_VENV=$RUEDA_VENV: there is no such virtual environment"
  RUEDA_VENV=$folder
  export RUEDA_VENV
else
  RUEDA_VENV=$(python3 -c 'import sys, torch; print(sys.prefix)' 2>/dev/null) || RUEDA_VENV=
  export RUEDA_VENV
fi
if [[ -n ${CUDACXX:-} ]] && ! command -v "$CUDACXX" >/dev/null; then
  fail "CUDACXX=$CUDACXX: there is no such program"
fi
# Two ranks share the device where there is only one: NCCL 2.30 and later are asked for it. Older ones
# take two ranks of one GPU if they seem to be on two hosts; then they talk over sockets.
export NCCL_MULTI_RANK_GPU_ENABLE=1
as_other_hosts() {
  local version
  version=$("$build/bin/ruedarun" --check-build | sed -n 's/^ *NCCL \([0-9]*\)\.\([0-9]*\)\..*/\1 \2/p')
  [[ -n $version ]] && (($(awk '{ print $1 * 100 + $2 }' <<<"$version") < 230))
}

failed=()
not_run=()
step() {  # NAME COMMAND...
  local name=$1 start=$SECONDS
  shift
  printf '\n==== %s\n' "$name"
  "$@" </dev/null || failed+=("$name")
  printf '==== %s: %d s\n' "$name" $((SECONDS - start))
}

# No device, no success: what follows would skip.
check_device() {
  local found
  found=$("$build/bin/ruedarun" --check-build) || return
  printf '%s\n' "$found"
  grep -q '^ *device 0: ' <<<"$found" && return
  printf 'gpu.sh: no CUDA device can be used here: %s\n' \
    "$(grep -m1 -e "can't be used" -e '\[ \] NCCL' <<<"$found" | sed "s/^ *\(can't be used here: \)\?//")" >&2
  return 1
}

# Tests that skip are none that passed.
run_tests() {
  local output status test
  output=$(mktemp)
  ctest --test-dir "$build" -L gpu --no-tests=error --output-on-failure | tee "$output"
  status=${PIPESTATUS[0]}
  while read -r test; do not_run+=("$test: it skipped (${build}/test/$test says why)"); done \
    < <(sed -n 's/^.*Test *#[0-9]*: \([^ ]*\) \.*\*\*\*Skipped.*/\1/p' "$output")
  grep -q ' torch_cuda_test ' "$output" || not_run+=("torch_cuda_test: built without torch, which cmake says why")
  rm "$output"
  return "$status"
}

configure_and_build() {
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DRUEDA_CUDA=ON -DRUEDA_SETUP_VENV=ON \
    "-DRUEDA_PREFIX=${RUEDA_PREFIX:-}" && cmake --build "$build"
}

if wants build; then
  step "build" configure_and_build
  [[ ${#failed[@]} == 0 ]] || exit 1
elif [[ ! -x $build/bin/ruedarun ]]; then
  fail "$build is not built yet: test/gpu.sh --build comes first"
fi
if [[ ${parts[*]} == build ]]; then exit 0; fi
if [[ ${parts[*]} == sanitizer ]] && ! command -v compute-sanitizer >/dev/null; then
  fail "--sanitizer: compute-sanitizer, which CUDA's toolkit has, is not in PATH"
fi
step "device" check_device
[[ ${#failed[@]} == 0 ]] || exit 1
on_ranks=("$build/bin/ruedarun" -np)
each=()
if as_other_hosts; then
  export TEST_NCCL_HOSTIDS=1
  # shellcheck disable=SC2016  # each rank's own
  each=(bash -c 'NCCL_HOSTID=$RUEDA_RANK exec "$@"' rank)
fi
if wants tests; then
  step "tests" run_tests
fi
if wants sanitizer; then
  if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
      step "$tool" compute-sanitizer --tool "$tool" --error-exitcode 9 "$build/test/nccl_module_test"
    done
  else
    not_run+=("memcheck and racecheck: compute-sanitizer, which CUDA's toolkit has, is not in PATH")
  fi
fi
if wants bench; then
  for ranks in 1 2; do
    on="$ranks rank$([[ $ranks == 1 ]] || echo s)"
    step "nccl_bench, $on" "${on_ranks[@]}" $ranks "${each[@]}" "$build/bin/rueda_nccl_bench"
    step "rueda_bench, $on" "${on_ranks[@]}" $ranks "${each[@]}" "$build/bin/rueda_bench" \
      --device cuda --bytes 4,4K,256K,16M,256M
  done
  step "many, 2 ranks" "${on_ranks[@]}" 2 "${each[@]}" "$build/bin/rueda_bench" --device cuda --many 161x640K
fi
if [[ ${#failed[@]} -gt 0 || ${#not_run[@]} -gt 0 ]]; then
  printf '\n'
  [[ ${#failed[@]} == 0 ]] || printf 'failed: %s\n' "${failed[@]}"
  [[ ${#not_run[@]} == 0 ]] || printf 'did not run: %s\n' "${not_run[@]}"
  exit 1
fi
