"""A whole engine over the GPU backend on CPU tensors: Triton's interpreter runs its kernels.

Import it only where TRITON_INTERPRET=1. The pool starts out as NaN, and after every step the books
are checked, as in `tests/builders/engines.py`.
"""

from __future__ import annotations

from pathlib import Path

from engine.adapter_loader import AdapterLoader
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.device import Device, HostDevice
from engine.gpu_runner import GpuRunner
from lora.base_spec import BaseSpec
from lora.store import LocalAdapterStore
from tests.builders.engines import EngineHarness


class InterpretedHarness(EngineHarness):
    """`EngineHarness` with a `GpuRunner`; records no logits."""

    def __init__(
        self,
        base_folder: Path,
        store_folder: Path,
        config: EngineConfig,
        *,
        max_in_flight: int = 2,
        device: Device | None = None,
        runner: type[GpuRunner] = GpuRunner,
    ) -> None:
        self.base = BaseSpec.from_folder(base_folder)
        self.store = LocalAdapterStore(store_folder)
        self.gpu = runner(
            config, self.base, base_folder, device or HostDevice(), max_in_flight=max_in_flight
        )
        self.gpu.kv_cache.poison()
        self.loader = AdapterLoader(
            self.store, self.base, self.gpu.base_tensors, prepare=self.gpu.prepare_adapter
        )
        config = self.gpu.config
        self.core = EngineCore(config, self.base, self.gpu, self.loader, "engine-under-test")
