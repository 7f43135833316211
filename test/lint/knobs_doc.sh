#!/usr/bin/env bash
# Checks that docs/reference/knobs.md is what rueda_knobs prints.
#
#     test/lint/knobs_doc.sh RUEDA_KNOBS
set -euo pipefail

program=$(realpath --relative-base="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)" "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
[[ $program == /* ]] || program=./$program
printed=$(mktemp)
trap 'rm -f "$printed"' EXIT
"$program" >"$printed"
grep -q RUEDA_ "$printed" || {
  echo "$program prints no knob" >&2
  exit 1
}
diff -u docs/reference/knobs.md "$printed" || {
  echo "docs/reference/knobs.md is out of date; to write it anew: $program >docs/reference/knobs.md" >&2
  exit 1
}
