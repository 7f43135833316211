#!/usr/bin/env bash
# An elastic job that changes while it runs: it begins with three processes, one of which is killed
# and replaced, and then another host comes. Takes less than a minute. From a fresh clone on: first
# installs what is missing (third_party/setup.sh), and builds what it needs of the release.
#
#     examples/elastic/run.sh [--no-build] [FOLDER]
#
#   --no-build   uses what has been installed and built as it is
#   FOLDER       gets elastic.svg: the loss and the number of ranks over time. Default: build
#
# Exit status: 0 when the replicas are equal at the end.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=$root/build
builds=1
for option in "$@"; do
  case "$option" in
    -h | --help)
      sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
      exit 0
      ;;
    --no-build) builds=0 ;;
    -*)
      echo "run.sh: unknown option $option; there are --no-build and --help" >&2
      exit 2
      ;;
    *) folder=$option ;;
  esac
done

# What they say is not the example's output.
if ((builds)); then
  "$root/third_party/setup.sh" >&2
  (
    cd "$root"
    cmake --preset release
    cmake --build --preset release --target rueda_python
  ) >&2
fi
python=${RUEDA_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/rueda/venv}/bin/python
export PYTHONPATH=$root/build/release/python OMP_NUM_THREADS=1

work=$(mktemp -d)
job=
clean_up() {
  if [[ -n $job ]]; then kill "$job" 2>/dev/null || true; fi
  wait
  rm -rf "$work"
}
trap clean_up EXIT

say() { printf -- '--- %s\n' "$*"; }

# Waits for a line of the job's output.
wait_for() {
  until grep -qE -- "$1" "$work/out"; do
    if ! kill -0 "$job" 2>/dev/null; then
      echo "run.sh: the job has ended before a line like '$1'" >&2
      exit 1
    fi
    sleep 0.1
  done
}

say "a job of three processes on one host, which needs at least two of them"
echo localhost:3 >"$work/hosts"
: >"$work/out"
RUEDA_STOP_FILE=$work/stop RUEDA_RECORDER_DIR=$work "$root/build/release/bin/ruedarun" \
  --host-discovery-script "cat $work/hosts" --min-np 2 \
  "$python" "$root/examples/elastic/train.py" --steps 1000000 --plot "$folder/elastic.svg" \
  >"$work/out" 2>&1 &
job=$!
tail -f --pid="$job" "$work/out" &
shown=$!

wait_for '^\[0\] step 200:'
pid=$(sed -n 's/^\[2\] membership 1: rank 2 of 3, pid \([0-9]*\),.*/\1/p' "$work/out")
say "kill -9 $pid: the others continue without rank 2, and another process is started"
kill -9 "$pid"
wait_for '\] membership [0-9]+: rank 1 of 2'
wait_for '\] membership ([2-9]|[1-9][0-9]+): rank 2 of 3'
sleep 2

say "the discovery script prints another host, by another name of this machine"
printf '%s\n' localhost:3 127.0.0.1:1 >"$work/hosts.new"
mv "$work/hosts.new" "$work/hosts"
wait_for '\] membership [0-9]+: rank 3 of 4'
sleep 2

say "the file of RUEDA_STOP_FILE appears: all ranks stop after the same step"
touch "$work/stop"
status=0
wait "$job" || status=$?
job=
wait "$shown" || true
if ((status != 0)); then exit "$status"; fi
grep -q 'replicas_equal=true' "$work/out"
say "$folder/elastic.svg shows the loss and the number of ranks over time"
