"""What is used of Lightning, by whichever of its names it is installed. `lightning` goes before
`pytorch_lightning`, unless the program has imported only the latter."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any


def _is_separate() -> bool:
    if "lightning" in sys.modules or importlib.util.find_spec("pytorch_lightning") is None:
        return False
    return "pytorch_lightning" in sys.modules or importlib.util.find_spec("lightning") is None


_SEPARATE = _is_separate()


def _of(package: str, module: str, name: str) -> Any:
    root = f"{package}_lightning" if package == "pytorch" else "lightning_fabric"
    full = root if _SEPARATE else f"lightning.{package}"
    return getattr(importlib.import_module(f"{full}.{module}"), name)


ClusterEnvironment: Any = _of("fabric", "plugins.environments", "ClusterEnvironment")
LightningEnvironment: Any = _of("fabric", "plugins.environments", "LightningEnvironment")
LSFEnvironment: Any = _of("fabric", "plugins.environments", "LSFEnvironment")
MPIEnvironment: Any = _of("fabric", "plugins.environments", "MPIEnvironment")
SLURMEnvironment: Any = _of("fabric", "plugins.environments", "SLURMEnvironment")
TorchElasticEnvironment: Any = _of("fabric", "plugins.environments", "TorchElasticEnvironment")

DDPStrategy: Any = _of("pytorch", "strategies", "DDPStrategy")
DistributedSamplerWrapper: Any = _of("fabric", "utilities.distributed", "DistributedSamplerWrapper")
LayerSync: Any = _of("pytorch", "plugins", "LayerSync")
Loop: Any = _of("pytorch", "loops.loop", "_Loop")
MisconfigurationException: Any = _of("pytorch", "utilities.exceptions", "MisconfigurationException")
StrategyRegistry: Any = _of("pytorch", "strategies", "StrategyRegistry")
TorchSyncBatchNorm: Any = _of("pytorch", "plugins", "TorchSyncBatchNorm")
call: Any = _of("pytorch", "trainer", "call")
sync_module_states: Any = _of("pytorch", "overrides.distributed", "_sync_module_states")
update_dataloader: Any = _of("pytorch", "utilities.data", "_update_dataloader")
