"""Runs a file of tests with pytest; exit status 77 and a reason where there is none.

python3 main.py FILE
"""

import importlib.util
import sys


def main() -> int:
    for package in ("pytest", "numpy", "cloudpickle"):
        if importlib.util.find_spec(package) is None:
            print(f"SKIPPED: {package} is not installed (third_party/setup.sh --tests)")
            return 77

    import pytest

    status = pytest.main(["-q", "-rfE", "-p", "no:cacheprovider", *sys.argv[1:]])
    if status == pytest.ExitCode.NO_TESTS_COLLECTED:  # the module was skipped
        return 77
    return int(status)


if __name__ == "__main__":  # processes that tests spawn import this, too
    sys.exit(main())
