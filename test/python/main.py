"""Runs a file of tests with pytest; exit status 77 and a reason where there is none.

python3 main.py FILE
"""

import importlib.util
import sys

for package in ("pytest", "numpy", "cloudpickle"):
    if importlib.util.find_spec(package) is None:
        print(f"SKIPPED: {package} is not installed (third_party/setup.sh --tests)")
        sys.exit(77)

import pytest  # noqa: E402

status = pytest.main(["-q", "-rfE", "-p", "no:cacheprovider", *sys.argv[1:]])
if status == pytest.ExitCode.NO_TESTS_COLLECTED:  # the module was skipped
    sys.exit(77)
sys.exit(status)
