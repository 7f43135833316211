"""rueda.keras, by the name that Horovod has for TensorFlow's Keras."""

from rueda.keras import *  # noqa: F403
from rueda.keras import __all__  # noqa: F401
