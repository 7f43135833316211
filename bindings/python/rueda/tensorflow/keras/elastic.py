"""rueda.keras.elastic."""

from rueda.keras.elastic import *  # noqa: F403
from rueda.keras.elastic import __all__  # noqa: F401
