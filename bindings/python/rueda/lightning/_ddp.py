"""What all strategies here have in common, and the first of them: DistributedDataParallel."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

import rueda
import rueda.distributed
from rueda.distributed import _meeting
from rueda.lightning import _lightning
from rueda.lightning._environment import RuedaEnvironment, launcher
from rueda.torch import SyncBatchNorm
from rueda.torch._sync_batch_norm import replaced


class RuedaSyncBatchNorm(_lightning.LayerSync):  # type: ignore[misc]
    """What sync_batchnorm=True means here: batch normalization over all ranks' batches, on the
    CPU, too."""

    def apply(self, model: torch.nn.Module) -> torch.nn.Module:
        """With its layers replaced."""
        return SyncBatchNorm.convert_sync_batchnorm(model)

    def revert(self, model: torch.nn.Module) -> torch.nn.Module:
        """With layers of torch's again, which don't look at other ranks."""
        kind: Any = _BatchNorm
        return replaced(model, lambda layer: isinstance(layer, SyncBatchNorm), kind)


class _BatchNorm(torch.nn.modules.batchnorm._BatchNorm):
    """For any number of dimensions: which of torch's classes it was is not known any more."""

    def _check_input_dim(self, input: torch.Tensor) -> None:
        pass


class RuedaStrategy(_lightning.DDPStrategy):  # type: ignore[misc]
    """DistributedDataParallel over Rueda's backend for torch.distributed.

    Under a launcher the ranks are there: they are the launcher's. Without one, Lightning starts the
    others, as for its own "ddp".

    Args:
        kwargs: of Lightning's DDPStrategy, and of torch's DistributedDataParallel.
    """

    strategy_name = "rueda"
    _environment: Any = None
    _layers: Any = None

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("process_group_backend", "rueda")
        super().__init__(**kwargs)

    # ---- the place in the job ----

    @property
    def cluster_environment(self) -> Any:
        """A RuedaEnvironment where Lightning's would not see what the library sees."""
        return self._environment

    @cluster_environment.setter
    def cluster_environment(self, given: Any) -> None:
        self._environment = RuedaEnvironment() if _sees_less(given) else given

    @property
    def is_distributed(self) -> bool:
        """True: each rank has its own part of the data, of which Lightning sees to it."""
        return True

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Which part: by the ranks that there are, whatever `devices` says."""
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    @property
    def root_device(self) -> torch.device:
        """This rank's: of those given, or, where one was given for each of several ranks, the one
        of its local rank, counted round those that this process sees."""
        devices: list[torch.device] = self.parallel_devices
        if self.local_rank < len(devices):
            return devices[self.local_rank]
        if devices[0].type == "cpu":
            return devices[0]
        seen = self.accelerator.auto_device_count()
        return torch.device(devices[0].type, self.local_rank % seen)

    def local_place(self) -> tuple[int, int]:
        """This rank among those of its host, and how many these are."""
        if isinstance(self._environment, RuedaEnvironment):
            return self.local_rank, self._environment.local_size()
        return self.local_rank, self.num_processes

    def node_place(self) -> tuple[int, int]:
        """The number of this host, and how many hosts there are."""
        if isinstance(self._environment, RuedaEnvironment):
            return self.node_rank, self._environment.nodes()
        return self.node_rank, self.num_nodes

    # ---- the job ----

    @property
    def _layer_sync(self) -> Any:
        return self._layers

    @_layer_sync.setter
    def _layer_sync(self, given: Any) -> None:
        is_torchs = isinstance(given, _lightning.TorchSyncBatchNorm)
        self._layers = RuedaSyncBatchNorm() if is_torchs else given

    def setup_distributed(self) -> None:
        """Joins: torch.distributed's group of all ranks, and `rueda`'s own job of the same."""
        super().setup_distributed()
        _join_job(self.global_rank, self.world_size)


def _sees_less(environment: Any) -> bool:
    """Whether Lightning's choice is another one than the launcher's."""
    started_by = launcher()
    if started_by is None:
        return False
    kinds = ["LightningEnvironment", "LSFEnvironment", "MPIEnvironment"]
    if started_by not in ("torchrun", "srun"):  # of which Lightning reads the same
        kinds.append("SLURMEnvironment")
    if started_by == "ruedarun":
        kinds.append("TorchElasticEnvironment")
    return type(environment) in [getattr(_lightning, kind) for kind in kinds]


def _join_job(rank: int, size: int) -> None:
    """For rueda.torch, whose ranks are those of torch.distributed. Does nothing when the launcher's
    job has been joined already, by whom ever."""
    if not rueda.is_initialized():
        own: Any = dist
        store = own.PrefixStore("rueda.torch", own.distributed_c10d._get_default_store())
        _meeting.become_job(store, rank, size)
    if (rueda.rank(), rueda.size()) != (rank, size):
        raise RuntimeError(
            f"this is rank {rueda.rank()} of {rueda.size()} for rueda, and {rank} of {size} for "
            "Lightning: give the Trainer plugins=RuedaEnvironment(), or let one launcher start the "
            "ranks"
        )
