#!/usr/bin/env bash
# Checks that each public header compiles by itself, with warnings as errors.
#
#     test/lint/headers.sh HEADER LANGUAGE STANDARD INCLUDE_DIR...
#
# HEADER as a user includes it (rueda/rueda.h); LANGUAGE c or c++; directories that begin with
# "system:" hold others' headers, which may do as they like. CC and CXX name the compilers.
set -euo pipefail

header=$1 language=$2 standard=$3
shift 3
compiler=${CC:-cc}
[[ $language == c ]] || compiler=${CXX:-c++}
flags=(-std="$standard" -Wall -Wextra -Wshadow -Wpedantic -Werror -fsyntax-only)
for directory in "$@"; do
  case "$directory" in
    system:*) flags+=(-isystem "${directory#system:}") ;;
    *) flags+=(-I "$directory") ;;
  esac
done
# Twice: the guard must hold.
printf '#include <%s>\n#include <%s>\n' "$header" "$header" |
  "$compiler" "${flags[@]}" -x "$language" -
echo "$header: $standard"
