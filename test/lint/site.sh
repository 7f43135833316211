#!/usr/bin/env bash
# Checks that the documentation site builds without a warning, that every page is in its navigation,
# that the index of decisions is complete, and that no page asks another host for a font, a style or
# a script. Exit status 77: skipped.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
for record in docs/adr/0*.md; do
  grep -qF "(${record##*/})" docs/adr/README.md || {
    echo "docs/adr/README.md does not list ${record##*/}" >&2
    exit 1
  }
done
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
status=0
docs/build.sh "$scratch/site" >"$scratch/log" 2>&1 || status=$?
if [[ $status == 77 ]]; then
  echo "SKIPPED: $(cat "$scratch/log")"
  exit 77
elif [[ $status != 0 ]]; then
  cat "$scratch/log" >&2
  exit 1
fi
pages=$(find "$scratch/site" -name '*.html' | wc -l)
[[ $pages -gt 100 ]] || {
  echo "only $pages pages" >&2
  exit 1
}
elsewhere='<(script|link|img|iframe)[^>]* (src|href)="?(https?:)?//[^ >]*'
! grep -rnoE "$elsewhere" "$scratch/site" --include='*.html' || {
  echo "these ask another host; the site must work without a network" >&2
  exit 1
}
echo "$pages pages"
