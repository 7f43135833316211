"""Every rank says where it is, and brings its number to an average.

ruedarun -H node1:1,node2:1 python where.py
"""

import socket

import rueda

rueda.init()
place = f"rank {rueda.rank()} of {rueda.size()} on {socket.gethostname()}"
local = f"local rank {rueda.local_rank()} of {rueda.local_size()}"
mean = rueda.allreduce(float(rueda.rank()), name="mean")
print(f"{place}, {local}: mean {mean}")
rueda.shutdown()
