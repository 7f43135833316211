#!/usr/bin/env bash
# Checks the Python package's types, and those that callers get (mypy), and, with its tests, style and layout (ruff).
#     python.sh PYTHON        Exit status 77: skipped.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=$1
config=pyproject.toml
for tool in mypy ruff; do
  if ! "$python" -m "$tool" --version >/dev/null 2>&1; then
    echo "SKIPPED: $tool is not installed (third_party/setup.sh --tests)"
    exit 77
  fi
done
export RUFF_NO_CACHE=true
"$python" -m ruff check --quiet --config "$config" bindings/python
"$python" -m ruff check --quiet --config "$config" --ignore D,RUF,SIM,B test/python
"$python" -m ruff format --check --quiet --config "$config" bindings/python test/python || {
  echo "to put it right: ruff format --config $config FILE..." >&2
  exit 1
}
cd bindings/python
"$python" -m mypy --config-file ../../pyproject.toml --cache-dir /dev/null rueda ../../test/python/typed_calls.py
