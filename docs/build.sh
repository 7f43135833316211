#!/usr/bin/env bash
# Builds the documentation site. Needs no build of Rueda and no network.
#
#     docs/build.sh [--serve] [FOLDER]
#
#   FOLDER     where the site goes; default: build/site. It is replaced.
#   --serve    then shows it on http://127.0.0.1:8000, and anew after each change
#
# Doxygen makes the pages of C, C++ and LibTorch, MkDocs all others and the site. A warning of
# either is an error: a page outside of mkdocs.yml's `nav`, a dead link, a dead anchor, a comment
# that Doxygen can't read.
#
#   RUEDA_VENV    the virtual environment that has MkDocs, as third_party/setup.sh knows it
# Exit status: 2 for wrong arguments, 77 when MkDocs or Doxygen is missing, 1 for errors.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv="${RUEDA_VENV:-${XDG_CACHE_HOME:-${HOME:-}/.cache}/rueda/venv}"

fail() {
  printf 'docs/build.sh: %s\n' "$2" >&2
  exit "$1"
}

site="$root/build/site"
serve=0
for argument in "$@"; do
  case "$argument" in
    --serve) serve=1 ;;
    -h | --help)
      sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
      exit 0
      ;;
    -*) fail 2 "unknown option $argument; the only one is --serve" ;;
    *) site=$(realpath -m "$argument") ;;
  esac
done

python="$venv/bin/python3"
"$python" -c 'import material, mkdocs, mkdocstrings_handlers.python' 2>/dev/null ||
  fail 77 "MkDocs is not installed in $venv: third_party/setup.sh --docs installs it"
command -v doxygen >/dev/null ||
  fail 77 "doxygen is not installed: third_party/setup.sh --docs installs it (Debian: doxygen)"
if [[ -e $site && -n $(ls -A "$site" 2>/dev/null) && ! -e $site/search/search_index.json ]]; then
  fail 2 "$site is not empty and no site: name another folder"
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$root"

header=bindings/c/include/rueda/rueda.h
RUEDA_VERSION=$(sed -n 's/^#define RUEDA_VERSION_[A-Z]* //p' "$header" | paste -sd .)
[[ -n $RUEDA_VERSION ]] || fail 1 "$header does not say which version this is"
export RUEDA_VERSION RUEDA_DOXYGEN=$scratch
if ! doxygen docs/api/Doxyfile 2>"$scratch/log" || [[ -s $scratch/log ]]; then
  cat "$scratch/log" >&2
  fail 1 "doxygen failed; see above"
fi

export RUEDA_DOXYGEN_HTML=$scratch/html PYTHONDONTWRITEBYTECODE=1
export NO_MKDOCS_2_WARNING=1  # an advertisement of the theme's
if [[ $serve == 1 ]]; then
  "$python" -m mkdocs serve --config-file mkdocs.yml
else
  # Not --quiet: with that MkDocs does not count its warnings.
  if ! "$python" -m mkdocs build --strict --config-file mkdocs.yml --site-dir "$scratch/site" \
    >"$scratch/log" 2>&1; then
    grep -v '^INFO' "$scratch/log" >&2 || true
    fail 1 "mkdocs failed; see above"
  fi
  rm -rf "$site"
  mkdir -p "$(dirname "$site")"
  mv "$scratch/site" "$site"
  printf '%s\n' "$site/index.html"
fi
