"""Handwritten digits for the Python examples: the 1,797 small ones of the UCI repository, as third_party/setup.sh
fetches them."""

from __future__ import annotations

import os
import pathlib

import numpy as np


def path() -> pathlib.Path:
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(cache) / "rueda" / "data" / "digits.csv"


def load() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images of shape (n, 1, 8, 8), float32 between 0 and 1, and digits of shape (n,), int64: those to train with,
    then those for the test, which are every fifth."""
    if not path().exists():
        raise SystemExit(f"there is no {path()}: run third_party/setup.sh")
    table = np.loadtxt(path(), delimiter=",", dtype=np.float32)
    images = (table[:, :64] / 16).reshape(-1, 1, 8, 8)
    digits = table[:, 64].astype(np.int64)
    test = np.arange(len(table)) % 5 == 4
    return images[~test], digits[~test], images[test], digits[test]
