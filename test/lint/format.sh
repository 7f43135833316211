#!/usr/bin/env bash
# Checks the layout of every C and C++ file against .clang-format. Exit status 77: skipped.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
formatter=clang-format-14
if ! command -v "$formatter" >/dev/null; then
  echo "SKIPPED: there is no $formatter (Debian: $formatter)"
  exit 77
fi
mapfile -t files < <(find core ops controller bindings examples test -type f \
  \( -name '*.h' -o -name '*.hpp' -o -name '*.cc' -o -name '*.c' \) | sort)
[[ ${#files[@]} -gt 0 ]] || {
  echo "no file found" >&2
  exit 1
}
"$formatter" --dry-run -Werror "${files[@]}" || {
  echo "to put it right: $formatter -i FILE..." >&2
  exit 1
}
echo "${#files[@]} files"
