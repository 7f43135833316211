"""Operations in functions that torch.compile compiles: in one graph where their results' shapes are
known, with the values and gradients of eager ones."""

from __future__ import annotations

import pathlib
import sys

import pytest

torch = pytest.importorskip("torch")

import rueda  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import compiled_cases as cases  # noqa: E402

# An operation that only one rank has left out ends soon.
KNOBS = {"deadlock_timeout_s": 20}


@pytest.fixture(scope="module")
def ends():
    """How each case ended, by rank. Torch takes seconds to import: all are on the same two."""
    return rueda.run(cases.run, (cases.NAMES,), np=2, knobs=KNOBS)


@pytest.mark.parametrize("name", cases.NAMES)
def test_compiled_as_eager(ends, name):
    for of_rank in ends:
        assert of_rank.get(name, "an earlier one failed") == ""


@pytest.fixture(scope="module")
def ends_of_cpp():
    if not cases.LIBRARY.exists():
        pytest.skip("librueda_torch.so was not built")
    return rueda.run(cases.run, (cases.NAMES_OF_CPP,), np=2, knobs=KNOBS)


@pytest.mark.parametrize("name", cases.NAMES_OF_CPP)
def test_operators_of_cpp_compiled_as_eager(ends_of_cpp, name):
    for of_rank in ends_of_cpp:
        assert of_rank.get(name, "an earlier one failed") == ""
