"""A backend for torch.distributed: code that uses it runs over Rueda unchanged.

    import rueda.distributed                       # makes the backend known
    torch.distributed.init_process_group("rueda")

Each process group is a context of its own (the ranks are those of the group), which meets through
the store that torch.distributed gives it. Operations on one group are matched by their order, as
torch.distributed demands; those of different groups don't wait for each other.

The backend is C++, built for one version of torch and of Python: ``python -m rueda.build`` makes it
for others.
"""

from __future__ import annotations

from rueda.distributed._backend import register

register()
