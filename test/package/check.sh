#!/usr/bin/env bash
# Installs a build into a temporary directory, moves it, and uses it there as a stranger would.
#
#     test/package/check.sh WHAT BUILD_DIR [TORCH_ROOT]
#
#   WHAT         c, cpp, torch: builds that folder's program against the package and runs it on two
#                ranks with the installed ruedarun, over shared memory and over Gloo
#                files: what is in the package, and what the libraries need
#                refusals: what the package must refuse, and in which words
#                subdirectory: configures the tree inside of the program's project, by
#                add_subdirectory; subdirectory_build: builds it there, too, which takes minutes
#   TORCH_ROOT   the torch that the adapter was built with
#
# CC and CXX name the compilers. Exit status: 0, 1, or 77 when skipped; then it says why.
set -euo pipefail

what=$1
build=$(cd "$2" && pwd)
torch_root=${3:-}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source_root=$(cd "$here/../.." && pwd)
cc=${CC:-cc}
cxx=${CXX:-c++}

fail() {
  printf 'FAILED: %s\n' "$*" >&2
  exit 1
}
skip() {
  printf 'SKIPPED: %s\n' "$*"
  exit 77
}

if [[ $what == torch && ! -e $build/lib/librueda_torch.so ]]; then
  skip "the LibTorch adapter was not built"
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cmake --install "$build" --prefix "$scratch/first" >"$scratch/install.log" ||
  fail "cmake --install: $(cat "$scratch/install.log")"
package=$scratch/moved
mv "$scratch/first" "$package"

# Nothing but the package says where things are.
unset RUEDA_VENV VIRTUAL_ENV RUEDA_PREFIX Torch_DIR CMAKE_PREFIX_PATH LD_LIBRARY_PATH PKG_CONFIG_PATH

# configure FOLDER OPTION...: the log goes to $scratch/configure.log.
configure() {
  local folder=$1
  shift
  cmake -G Ninja -S "$here/$folder" -B "$scratch/$folder" \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" "$@" \
    >"$scratch/configure.log" 2>&1
}

build_project() {
  configure "$@" || fail "configuring $1: $(cat "$scratch/configure.log")"
  cmake --build "$scratch/$1" >"$scratch/build.log" 2>&1 ||
    fail "building $1: $(cat "$scratch/build.log")"
}

# The program must find all it needs by itself, and the module of the moved library.
run_on_two_ranks() {
  local backend output
  local backends=(shm)
  if [[ -e $build/lib/rueda/librueda_gloo.so ]]; then
    backends+=(gloo)
  else
    printf 'SKIPPED in part: the Gloo module was not built\n'
  fi
  for backend in "${backends[@]}"; do
    output=$(RUEDA_BACKEND=$backend "$package/bin/ruedarun" -np 2 "$1" 2>&1) ||
      fail "$(basename "$1") over $backend: $output"
    [[ $(grep -c 'rank [01]: right$' <<<"$output") == 2 ]] ||
      fail "$(basename "$1") over $backend: not two ranks said that they are right: $output"
    printf '%s over %s: right on two ranks\n' "$(basename "$1")" "$backend"
  done
}

# expect_refusal WORDS OPTION...: find_package fails and says WORDS.
expect_refusal() {
  local words=$1
  shift
  rm -rf "$scratch/refusals"
  if configure refusals "-DCMAKE_PREFIX_PATH=$package" "$@"; then
    fail "not refused: $*"
  fi
  # CMake wraps its messages.
  tr -s ' \n' ' ' <"$scratch/configure.log" | grep -qF "$words" ||
    fail "refused, but without the words '$words': $(cat "$scratch/configure.log")"
  printf 'refused: %s\n' "$words"
}

check_c() {
  command -v pkg-config >/dev/null || fail "there is no pkg-config"
  export PKG_CONFIG_PATH=$package/lib/pkgconfig
  local text flags
  text=$(pkg-config --cflags --libs rueda) || fail "pkg-config does not know rueda"
  read -ra flags <<<"$text"
  local version
  version=$(sed -n 's/^#define RUEDA_VERSION_[A-Z]* //p' "$package/include/rueda/rueda.h" | paste -sd .)
  [[ $(pkg-config --modversion rueda) == "$version" ]] ||
    fail "the header says $version, the package $(pkg-config --modversion rueda)"
  "$cc" -std=c11 -Wall -Wextra -Wpedantic -Werror "$here/c/sum.c" -o "$scratch/sum" \
    "${flags[@]}" "-Wl,-rpath,$(pkg-config --variable=libdir rueda)"
  run_on_two_ranks "$scratch/sum"
  unset PKG_CONFIG_PATH
  build_project c "-DCMAKE_PREFIX_PATH=$package"
  run_on_two_ranks "$scratch/c/sum"
}

check_cpp() {
  build_project cpp "-DCMAKE_PREFIX_PATH=$package"
  run_on_two_ranks "$scratch/cpp/average"
}

check_torch() {
  build_project torch "-DCMAKE_PREFIX_PATH=$package;$torch_root"
  run_on_two_ranks "$scratch/torch/tensors"
  run_on_two_ranks "$scratch/torch/names"
}

check_refusals() {
  expect_refusal 'compatible with requested version "99.0"' "-DREQUEST=99.0;REQUIRED"
  # Minor versions of 0.x are not compatible.
  expect_refusal 'compatible with requested version "0.0"' "-DREQUEST=0.0;REQUIRED"
  expect_refusal "rueda has no component 'nonsense'; there is: torch." \
    "-DREQUEST=REQUIRED;COMPONENTS;nonsense"
  local why="this rueda was built without the LibTorch adapter"
  [[ ! -e $build/lib/librueda_torch.so ]] || why="torch was not found. Name a place with torch"
  expect_refusal "No rueda::torch: $why" "-DREQUEST=REQUIRED;COMPONENTS;torch"
}

check_files() {
  local file path
  for file in bin/ruedarun bin/rueda_bench include/rueda/rueda.h include/rueda/rueda.hpp \
    include/rueda/cpp/errors.hpp \
    lib/librueda.so lib/pkgconfig/rueda.pc lib/cmake/rueda/ruedaConfig.cmake \
    lib/cmake/rueda/ruedaConfigVersion.cmake lib/cmake/rueda/ruedaTargets.cmake \
    share/doc/rueda/LICENSE; do
    [[ -e $package/$file ]] || fail "the package has no $file"
  done
  # Each file is of one component, and each component has what its name says.
  local component files
  for component in runtime tools dev; do
    cmake --install "$build" --prefix "$scratch/$component" --component "$component" >/dev/null
    files=$(cd "$scratch/$component" && find . ! -type d | sort)
    case $component in
      runtime) ! grep -vE '^\./(lib/(rueda/)?librueda[a-z_]*\.so(\.[0-9.]+)?|share/doc/rueda/LICENSE)$' <<<"$files" ;;
      tools) ! grep -v '^\./bin/' <<<"$files" ;;
      dev) ! grep -vE '^\./(include|lib/(cmake|pkgconfig))/|^\./lib/librueda[a-z_]*\.so$' <<<"$files" ;;
    esac || fail "the component $component has the files above"
  done
  files=$(for component in runtime tools dev; do (cd "$scratch/$component" && find . ! -type d); done)
  [[ $(sort <<<"$files") == "$(cd "$package" && find . ! -type d | sort)" ]] ||
    fail "these are in no component, or in two: $(diff <(sort <<<"$files") <(cd "$package" && find . ! -type d | sort))"
  for file in lib/rueda/librueda_gloo.so lib/librueda_torch.so; do
    [[ ! -e $build/$file || -e $package/$file ]] || fail "$file was built, but is not installed"
  done
  # Programs ask for the library of a version whose ABI is theirs: in 0.x that of one minor version.
  local version
  version=$(sed -n 's/^#define RUEDA_VERSION_M[A-Z]* //p' "$package/include/rueda/rueda.h" | paste -sd .)
  [[ $version == 0.* ]] || version=${version%%.*}
  for file in librueda librueda_torch; do
    [[ -e $package/lib/$file.so ]] || continue
    path=$(readelf -d "$package/lib/$file.so" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
    [[ $path == "$file.so.$version" ]] || fail "$file.so calls itself $path, not $file.so.$version"
    printf '%s.so: %s\n' "$file" "$path"
  done
  # No archive, no header of the inside, no path of where it was built.
  [[ -z $(find "$package" -name '*.a') ]] || fail "static archives: $(find "$package" -name '*.a')"
  local roots=("$source_root"/bindings/{c,cpp}/include)
  [[ ! -e $build/lib/librueda_torch.so ]] || roots+=("$source_root/bindings/torch/include")
  local public installed
  public=$(for path in "${roots[@]}"; do (cd "$path" && find . -type f); done | sort)
  installed=$(cd "$package/include" && find . -type f | sort)
  [[ $installed == "$public" ]] || fail "public headers: $public; installed: $installed"
  if grep -rIlF -e "$source_root" -e "$build" -e "$scratch/first" "$package"; then
    fail "these files name the place where they were built"
  fi
  while read -r file; do
    path=$(readelf -d "$file" | sed -n 's/.*R\(UN\)\?PATH.*\[\(.*\)\]/\2/p')
    case "$path" in
      "" | '$ORIGIN' | '$ORIGIN/../lib') ;;
      *) fail "$file looks for libraries in '$path'" ;;
    esac
    printf '%s: path %s\n' "${file#"$package/"}" "${path:-none}"
  done < <(find "$package/bin" "$package/lib" -type f \( -name '*.so*' -o -perm -u+x \))
}

check_subdirectory() {
  local options=(cpp "-DRUEDA_SOURCE=$source_root" -DCMAKE_CXX_FLAGS_RELEASE=-O1)
  configure "${options[@]}" || fail "configuring: $(cat "$scratch/configure.log")"
  local commands=$scratch/cpp/compile_commands.json
  ! grep -qE '_test\.cc|examples/' "$commands" || fail "there are tests or examples in it"
  ! grep -q -- '-O3' "$commands" || fail "-O1 was asked for, not -O3"
  grep -q 'bindings/c/context.cc' "$commands" || fail "the library is not in it"
}

check_subdirectory_build() {
  check_subdirectory
  build_project cpp "-DRUEDA_SOURCE=$source_root" -DCMAKE_CXX_FLAGS_RELEASE=-O1
  package=$scratch/cpp/rueda
  run_on_two_ranks "$scratch/cpp/average"
}

case "$what" in
  c | cpp | torch | refusals | files | subdirectory | subdirectory_build) "check_$what" ;;
  *) fail "unknown: $what" ;;
esac
