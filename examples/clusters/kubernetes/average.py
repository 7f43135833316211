"""The smallest program: every rank brings a vector, and all get the average."""

import numpy as np

import rueda

rueda.init()
gradient = np.full(4, rueda.rank(), np.float32)
rueda.allreduce_(gradient, name="gradient")
print(f"rank {rueda.rank()} of {rueda.size()}: average {gradient[0]:.1f}")
rueda.shutdown()
