#!/usr/bin/env bash
# Trains the same model under every strategy, and writes a table and a plot of what each costs and
# reaches: examples/compare/run.sh [options of compare.py]. From a fresh clone on: installs what is
# missing (third_party/setup.sh, and matplotlib for the plot), and builds what it needs.
#
#     examples/compare/run.sh [-np N] [--epochs N] [--rounds N] [--only NAME,...] [--out FOLDER]
#
# FOLDER (build/compare) gets table.md, plot.svg and results.json; the table is printed too.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
case "${1:-}" in
  -h | --help)
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
    exit 0
    ;;
esac
venv=${RUEDA_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/rueda/venv}
"$root/third_party/setup.sh" >&2
(
  cd "$root"
  cmake --preset release
  cmake --build --preset release --target mnist large_net ruedarun
) >&2
"$venv/bin/python" -c 'import matplotlib' 2>/dev/null || "$venv/bin/pip" install --quiet matplotlib >&2
exec "$venv/bin/python" "$root/examples/compare/compare.py" --bin "$root/build/release/bin" \
  --out "$root/build/compare" "$@"
