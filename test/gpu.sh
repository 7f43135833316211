#!/usr/bin/env bash
# What needs a CUDA device, from a fresh clone on a machine that has one: builds, runs the tests with the
# label gpu (some of them again under compute-sanitizer, where that is installed), then the benchmarks.
# Exit status: 0 when nothing failed. Write what ran, and on which device, into docs/gpu.md.
#
#     test/gpu.sh [--build] [--tests] [--sanitizer] [--bench]      all of them, if none is named
#
# Installs nothing: the compilers, CMake, ninja, NCCL and torch are the machine's. What else Rueda is
# built with may come from a folder (third_party/prefix.sh makes it elsewhere): RUEDA_PREFIX.
# RUEDA_VENV: the Python environment that has torch and NCCL's header; default: the one of python3.
set -uo pipefail

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

build=build/gpu
if [[ -n ${RUEDA_PREFIX:-} ]]; then
  libraries="$RUEDA_PREFIX/usr/lib/$(uname -m)-linux-gnu"
  export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
if [[ -z ${RUEDA_VENV:-} ]]; then
  RUEDA_VENV=$(python3 -c 'import sys, torch; print(sys.prefix)' 2>/dev/null) || RUEDA_VENV=
  export RUEDA_VENV
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
step() {  # NAME COMMAND...
  local name=$1 start=$SECONDS
  shift
  printf '\n==== %s\n' "$name"
  "$@" </dev/null || failed+=("$name")
  printf '==== %s: %d s\n' "$name" $((SECONDS - start))
}

configure_and_build() {
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DRUEDA_CUDA=ON \
    "-DRUEDA_PREFIX=${RUEDA_PREFIX:-}" && cmake --build "$build"
}

if wants build; then
  step "build" configure_and_build
  [[ ${#failed[@]} == 0 ]] || exit 1
fi
step "device" "$build/bin/ruedarun" --check-build
on_ranks=("$build/bin/ruedarun" -np)
each=()
if as_other_hosts; then
  export TEST_NCCL_HOSTIDS=1
  # shellcheck disable=SC2016  # each rank's own
  each=(bash -c 'NCCL_HOSTID=$RUEDA_RANK exec "$@"' rank)
fi
if wants tests; then
  step "tests" ctest --test-dir "$build" -L gpu --output-on-failure
fi
if wants sanitizer; then
  if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
      step "$tool" compute-sanitizer --tool "$tool" --error-exitcode 9 "$build/test/nccl_module_test"
    done
  else
    printf '\n==== compute-sanitizer: left out, it is not installed\n'
  fi
fi
if wants bench; then
  for ranks in 1 2; do
    step "nccl_bench, $ranks ranks" "${on_ranks[@]}" $ranks "${each[@]}" "$build/bin/rueda_nccl_bench"
    step "rueda_bench, $ranks ranks" "${on_ranks[@]}" $ranks "${each[@]}" "$build/bin/rueda_bench" \
      --device cuda --bytes 4,4K,256K,16M,256M
  done
  step "many, 2 ranks" "${on_ranks[@]}" 2 "${each[@]}" "$build/bin/rueda_bench" --device cuda --many 161x640K
fi
if [[ ${#failed[@]} -gt 0 ]]; then
  printf '\nfailed: %s\n' "${failed[*]}"
  exit 1
fi
