"""Where a process stands in its job, as the library finds it out."""

from __future__ import annotations

import os
import socket
from typing import Any, NamedTuple

import rueda
from rueda.distributed import _meeting
from rueda.lightning._lightning import ClusterEnvironment

# Launchers as controller/rendezvous/detect/detect.cc knows them, in its order: a variable that says
# that the others are this launcher's, and those of the number of ranks and of the rank.
_LAUNCHERS = (
    ("torchrun", "TORCHELASTIC_RUN_ID", "WORLD_SIZE", "RANK"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("Hydra", "MPI_LOCALNRANKS", "PMI_SIZE", "PMI_RANK"),
    ("MVAPICH2", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("srun", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    ("jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"),
    ("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_RANK"),
    ("a script", "RANK", "WORLD_SIZE", "RANK"),
)


def launcher() -> str | None:
    """Who started this process as one of several ranks, or ruedarun also as one of one; None:
    nobody."""
    environment = os.environ
    if "RUEDA_RANK" in environment:
        return "ruedarun"
    for name, mark, size, rank in _LAUNCHERS:
        if environment.get(mark) and rank in environment and environment.get(size, "1") != "1":
            return name
    return None


class _Place(NamedTuple):
    rank: int
    size: int
    local_rank: int
    local_size: int
    node: int
    nodes: int
    address: str
    port: int


class RuedaEnvironment(ClusterEnvironment):  # type: ignore[misc]
    """For processes that ruedarun, torchrun, mpirun, srun, jsrun or a script has started, in a job
    of PBS, SLURM or LSF or outside of one. The strategies of this package take it by themselves;
    give it to Lightning's own as `Trainer(plugins=RuedaEnvironment())`.

    What it is first asked calls `rueda.init()`, which waits for the other ranks.
    """

    def __init__(self) -> None:
        super().__init__()
        self._place: _Place | None = None

    def _found(self) -> _Place:
        if self._place is None:
            rueda.init()
            hosts = rueda.allgather_object(_meeting.host_id(), name="rueda.lightning hosts")
            names = list(dict.fromkeys(hosts))
            address = _meeting_point(hosts)
            self._place = _Place(
                rueda.rank(),
                rueda.size(),
                rueda.local_rank(),
                rueda.local_size(),
                names.index(hosts[rueda.rank()]),
                len(names),
                *address,
            )
        return self._place

    @property
    def creates_processes_externally(self) -> bool:
        """True: a launcher has."""
        return True

    @staticmethod
    def detect() -> bool:
        """Whether a launcher has started this process as one of several."""
        return launcher() is not None

    @property
    def main_address(self) -> str:
        """Of rank 0's host: `MASTER_ADDR`, or what the ranks have found out."""
        return self._found().address

    @property
    def main_port(self) -> int:
        """Of torch.distributed's store: `MASTER_PORT`, or one that was free."""
        return self._found().port

    def world_size(self) -> int:
        """How many ranks there are."""
        return self._found().size

    def set_world_size(self, size: int) -> None:
        """The launcher's counts."""

    def global_rank(self) -> int:
        """This rank."""
        return self._found().rank

    def set_global_rank(self, rank: int) -> None:
        """The launcher's counts."""

    def local_rank(self) -> int:
        """This rank among those of its host."""
        return self._found().local_rank

    def local_size(self) -> int:
        """How many ranks its host has."""
        return self._found().local_size

    def node_rank(self) -> int:
        """The number of this host, in the order of the hosts' first ranks."""
        return self._found().node

    def nodes(self) -> int:
        """How many hosts there are."""
        return self._found().nodes

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Raises a ValueError when the Trainer speaks of other numbers than the launcher. Those
        who leave `devices` and `num_nodes` at 1 leave them to the launcher."""
        place = self._found()
        for what, given, found in (
            ("devices", num_devices, place.local_size),
            ("num_nodes", num_nodes, place.nodes),
        ):
            if given not in (1, found):
                raise ValueError(
                    f"Trainer({what}={given}): {launcher() or 'the launcher'} has started "
                    f"{place.size} ranks on {place.nodes} hosts, {place.local_size} on this one; "
                    f"{what} is to be {' or '.join(sorted({'1', str(found)}))}"
                )


def _meeting_point(hosts: list[Any]) -> tuple[str, int]:
    """Where rank 0's store of torch.distributed waits. Collective."""
    environment = os.environ
    if environment.get("MASTER_ADDR") and environment.get("MASTER_PORT"):
        return environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    names = rueda.allgather_object(socket.gethostname(), name="rueda.lightning names")
    point = None
    if rueda.rank() == 0:
        other = next((n for h, n in zip(hosts, names, strict=True) if h != hosts[0]), None)
        point = _meeting.free_address("127.0.0.1" if other is None else other)
    found: tuple[str, int] = rueda.broadcast_object(point, 0, name="rueda.lightning meeting")
    return found
