#!/usr/bin/env bash
# The wheel: built, made independent of the system's libraries by auditwheel, and used in virtual environments
# that have only what it asks for and NumPy, then torch and JAX too.
#     wheel_test.sh PYTHON BUILD_FOLDER      Exit status 77: skipped.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=$1
build=$2/wheel_test
for module in scikit_build_core auditwheel pytest cloudpickle; do
  if ! "$python" -c "import $module" 2>/dev/null; then
    echo "SKIPPED: $module is not installed (third_party/setup.sh --tests)"
    exit 77
  fi
done
rm -rf "$build"
mkdir -p "$build"
cd "$build"

PATH="$(dirname "$python"):$PATH"
# The compilers' names that CMake finds by itself, so that ccache knows the files of that build; else they are Python's.
CC=cc CXX=c++ "$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
  --wheel-dir built "$root/bindings/python"
"$python" -m auditwheel repair --wheel-dir repaired built/rueda-*.whl
wheel=$(ls repaired/rueda-*.whl)
echo "$(basename "$wheel"): $(stat -c %s "$wheel") bytes"
case "$wheel" in
  *-py3-none-manylinux_*) ;;
  *) echo "the tag is not that of any Python on some Linux" && exit 1 ;;
esac

# A new environment, with what this one has of others' packages but not this package's folders.
"$python" -m venv new
site=$(new/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
own=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
for package in numpy numpy.libs pytest _pytest py.py pluggy iniconfig packaging pygments cloudpickle; do
  [[ ! -e $own/$package ]] || ln -s "$own/$package" "$site/"
done
new/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-index "$wheel"
unset PYTHONPATH LD_LIBRARY_PATH
cd /

in_new() { "$build/new/bin/$1" "${@:2}"; }
in_new ruedarun --check-build
in_new ruedarun -np 2 "$build/new/bin/python" -c '
import numpy, rueda, sys
rueda.init()
assert rueda.__file__.startswith(sys.argv[1]), rueda.__file__
assert rueda.allreduce(numpy.ones(3), op=rueda.Sum).tolist() == [2.0] * 3
' "$build"
# Nothing of the build is needed, and nothing of Abseil or Protobuf that the system may have.
if ldd "$site"/rueda/lib/librueda.so | grep -E '=> /(usr/)?lib/[^ ]*(absl|protobuf|crypto)'; then
  echo "librueda.so finds these in the system" && exit 1
fi
export HEADER_OF_RUEDA=$root/bindings/c/include/rueda/rueda.h
tests=("$root"/test/python/{core,layout}_test.py)
in_new python "$root/test/python/main.py" "${tests[@]}"

if "$python" -c 'import torch' 2>/dev/null; then
  for package in "$own"/*; do
    [[ -e $site/$(basename "$package") || $(basename "$package") == rueda* ]] || ln -s "$package" "$site/"
  done
  in_new python "$root/test/python/main.py" "$root"/test/python/torch_test.py
  in_new python -m rueda.build
  in_new python "$root/test/python/main.py" "$root"/test/python/process_group_test.py -k "overloads or without"
  in_new python "$root/test/python/main.py" "$root"/test/python/jax_test.py -k "results or order"
fi
