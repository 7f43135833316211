"""Strategies for Lightning's Trainer.

    import rueda.lightning

    Trainer(strategy="rueda", accelerator="cpu", devices=2)

`import` makes these names known: "rueda" (DistributedDataParallel over Rueda), "rueda_elastic"
(for `ruedarun --min-np`), "horovod", "bagua", "ddp_sharded", "dp" and "ddp2". Lightning's own
("ddp", "ddp_spawn", ...) stay as they are. It is for `lightning`, and for `pytorch_lightning` where
only that is installed or imported.
"""

from __future__ import annotations

from rueda.lightning import _lightning
from rueda.lightning._data_parallel import DataParallelStrategy, DDP2Strategy
from rueda.lightning._ddp import RuedaStrategy, RuedaSyncBatchNorm
from rueda.lightning._elastic import RuedaElasticStrategy
from rueda.lightning._environment import RuedaEnvironment
from rueda.lightning._optimizers import BaguaStrategy, HorovodStrategy
from rueda.lightning._sharded import DDPShardedStrategy

_STRATEGIES = (
    ("rueda", RuedaStrategy, "DistributedDataParallel over Rueda"),
    ("rueda_elastic", RuedaElasticStrategy, "goes on when ranks are lost, and when others come"),
    ("horovod", HorovodStrategy, "Rueda's DistributedOptimizer, as Horovod's"),
    ("bagua", BaguaStrategy, "Bagua's algorithms over Rueda"),
    ("ddp_sharded", DDPShardedStrategy, "the optimizers' state is shared out (ZeRO-1)"),
    ("dp", DataParallelStrategy, "the devices of one host share out each batch"),
    ("ddp2", DDP2Strategy, "dp inside a host, DDP across hosts"),
)
for _name, _strategy, _description in _STRATEGIES:
    _lightning.StrategyRegistry.register(_name, _strategy, description=_description, override=True)
_lightning.StrategyRegistry.register(
    "rueda_spawn",
    RuedaStrategy,
    description="the same on processes that torch.multiprocessing starts",
    override=True,
    start_method="spawn",
)

__all__ = [
    "BaguaStrategy",
    "DDP2Strategy",
    "DDPShardedStrategy",
    "DataParallelStrategy",
    "HorovodStrategy",
    "RuedaElasticStrategy",
    "RuedaEnvironment",
    "RuedaStrategy",
    "RuedaSyncBatchNorm",
]
