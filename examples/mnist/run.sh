#!/usr/bin/env bash
# Trains the net of examples/mnist on this machine, from a fresh clone on: installs what is missing
# (third_party/setup.sh), builds what it needs of the release, runs it. A second run starts at once.
#
#     examples/mnist/run.sh [-np N] [options of mnist]
#
# -np is the number of ranks, 2 by default; `run.sh --help` lists the other options. The last line
# on standard output is JSON. Exit status: 0 when the replicas are equal at the end.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
ranks=2
options=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    -np)
      [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || {
        echo "run.sh: -np takes a number of ranks" >&2
        exit 2
      }
      ranks=$2
      shift 2
      ;;
    -h | --help)
      sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
      if [[ -x $root/build/release/bin/mnist ]]; then
        printf '\nOptions of mnist, once it is built:\n\n'
        "$root/build/release/bin/mnist" --help
      fi
      exit 0
      ;;
    *)
      options+=("$1")
      shift
      ;;
  esac
done

# What they say is not the example's output.
"$root/third_party/setup.sh" >&2
(
  cd "$root"
  cmake --preset release
  targets=$(cmake --build --preset release --target help)
  if ! grep -q '^mnist: ' <<<"$targets"; then
    echo "run.sh: mnist can't be built, because torch was not found; see LibTorch above"
    exit 1
  fi
  cmake --build --preset release --target mnist
) >&2

bin="$root/build/release/bin"
exec "$bin/ruedarun" -np "$ranks" --prefix none "$bin/mnist" "${options[@]}"
