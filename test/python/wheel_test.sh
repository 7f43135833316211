#!/usr/bin/env bash
# The wheel: built by pip from an sdist, in an environment that has nothing, and used in virtual environments that have
# only what it asks for and NumPy, then torch and JAX too, and beside another project's package of the same name.
#     wheel_test.sh PYTHON BUILD_FOLDER [WHEEL]      Exit status 77: skipped.
# With WHEEL, one that bindings/python/wheel.sh has made: it is to need nothing of this system, and is not built.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=$1
build=$2/wheel_test
wheel=${3:+$(realpath "$3")}
for module in scikit_build_core wheel pytest cloudpickle; do
  if ! "$python" -c "import $module" 2>/dev/null; then
    echo "SKIPPED: $module is not installed (third_party/setup.sh --tests)"
    exit 77
  fi
done
rm -rf "$build"
mkdir -p "$build"
cd "$build"

if [[ -z $wheel ]]; then
  (cd "$root" && "$python" -c '
import sys, scikit_build_core.build
scikit_build_core.build.build_sdist(sys.argv[1])' "$build")
  "$python" -m venv empty
  # The compilers' names that CMake finds by itself, so that ccache knows the files of that build; else they are Python's.
  # shellcheck disable=SC2086  # several arguments
  CC=cc CXX=c++ empty/bin/python -m pip wheel --quiet --disable-pip-version-check ${RUEDA_PIP_ARGS:-} --no-deps \
    --wheel-dir made rueda_collectives-*.tar.gz
  wheel=$(realpath made/*.whl)
fi
echo "$(basename "$wheel"): $(stat -c %s "$wheel") bytes"

# Its license is in it, and those of the libraries that are.
"$python" - "$wheel" "$#" <<'END'
import sys
import zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    names = [name.split("/")[-1] for name in wheel.namelist() if ".dist-info/licenses/" in name]
    assert "LICENSE" in names, names
    if sys.argv[2] == "3":
        notices = wheel.read(next(n for n in wheel.namelist() if n.endswith("/THIRD_PARTY_NOTICES.txt"))).decode()
        for library in ("abseil", "gloo", "highway", "libc++", "libsodium", "nlohmann-json3", "protobuf", "yaml-cpp"):
            assert f"\n{library}\n=====" in notices, library
END

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
# Of the system's libraries it needs no others than those that every Linux has.
if [[ $# == 3 ]]; then
  found=$(ldd "$site"/rueda/lib/*.so "$site"/rueda/lib/rueda/*.so "$site"/rueda/bin/ruedarun)
  if grep -F '=>' <<<"$found" | grep -vE '^\s*lib(c|m|dl|rt|pthread)\.so' | grep -vF "=> $site/"; then
    echo "the wheel finds these in the system" && exit 1
  fi
fi
export HEADER_OF_RUEDA=$root/bindings/c/include/rueda/rueda.h
tests=("$root"/test/python/{core,layout}_test.py)
in_new python "$root/test/python/main.py" "${tests[@]}"

# Another project's package of the import name, as the index has one: this one is a fake. Whichever came first, and
# whatever its removal takes away, the doctor says what to do, and it helps.
other=$build/rueda-0.0.1-py3-none-any.whl
"$python" - "$other" <<'END'
import sys
import zipfile

with zipfile.ZipFile(sys.argv[1], "w") as wheel:
    files = {
        "rueda/__init__.py": "def main(): pass\n",
        "rueda/robots.py": "",
        "rueda-0.0.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: rueda\nVersion: 0.0.1\n",
        "rueda-0.0.1.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files["rueda-0.0.1.dist-info/RECORD"] = "".join(f"{name},,\n" for name in files)
    for name, text in files.items():
        wheel.writestr(name, text)
END
pip_() { in_new python -m pip --quiet --disable-pip-version-check "$@"; }
install() { pip_ install --no-deps --no-index --force-reinstall "$1"; }
doctor_says() {
  local said
  said=$(in_new python -m rueda.doctor) && echo "the doctor found nothing wrong, $1" && exit 1
  grep -qF "$2" <<<"$said" || { echo "the doctor does not say '$2', $1: $said" && exit 1; }
}
install "$other"
doctor_says "theirs behind ours" "another project, rueda 0.0.1, has files in"
pip_ uninstall --yes rueda
doctor_says "theirs gone again" "files of rueda-collectives are missing, rueda/__init__.py for one"
pip_ uninstall --yes rueda-collectives
install "$other"
install "$wheel"
doctor_says "ours behind theirs" "another project, rueda 0.0.1, has files in"
pip_ uninstall --yes rueda
install "$wheel"
find "$site/rueda" -name '*.pyc' -delete  # which pip has listed, and may go
said=$(in_new python -m rueda.doctor) || true  # without the links to cloudpickle it is not content
grep -qF "ok  librueda" <<<"$said" || { echo "the doctor's advice does not help: $said" && exit 1; }

if "$python" -c 'import torch' 2>/dev/null; then
  for package in "$own"/*; do
    [[ -e $site/$(basename "$package") || $(basename "$package") == rueda* ]] || ln -s "$package" "$site/"
  done
  in_new python "$root/test/python/main.py" "$root"/test/python/torch_test.py
  in_new python -m rueda.build
  in_new python "$root/test/python/main.py" "$root"/test/python/process_group_test.py -k "overloads or without"
  in_new python "$root/test/python/main.py" "$root"/test/python/jax_test.py -k "results or order"
fi
