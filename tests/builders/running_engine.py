"""`python -m engine` without the process: every thread of it, on a tiny model.

Knows nothing of tests. Invariant: the loop has ended when the block does.
"""

from __future__ import annotations

import threading
from pathlib import Path

from engine.adapter_loader import AdapterLoader
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.loop import EngineLoop
from engine.model_runner import ModelRunner
from engine.residency import Residency
from engine.scheduler import Step
from engine.step_handle import StepHandle
from engine.transport.server import EngineTransport
from lora.base_spec import BaseSpec
from lora.store import LocalAdapterStore
from tests.builders.peft_models import make_tiny_llama
from tests.builders.queue_secret import QUEUE_SECRET


class StallingRunner(ModelRunner):
    """The real runner; its device hangs while `may_run` is not set."""

    def __init__(self, config: EngineConfig, base: BaseSpec, folder: Path) -> None:
        super().__init__(config, base, folder)
        self.may_run = threading.Event()
        self.may_run.set()

    def execute(self, step: Step, residency: Residency) -> StepHandle:
        self.may_run.wait()
        return super().execute(step, residency)


class RunningEngine:
    """Adapters are in `folder`/store. Engines of different folders have the same model."""

    def __init__(
        self,
        folder: Path,
        redis_url: str,
        *,
        engine_id: str = "engine-a",
        drain_s: float = 8.0,
        step_limit_s: float = 30.0,
        batch_invariant: bool = False,
        model: Path | None = None,
        **config: int,
    ) -> None:
        """model: another base than a tiny one of random numbers."""
        model = model or make_tiny_llama(folder / "base")
        base = BaseSpec.from_folder(model)
        settings = EngineConfig(
            pool_bytes=1 << 22,
            drain_s=drain_s,
            step_limit_s=step_limit_s,
            batch_invariant=batch_invariant,
            **config,
        )
        self.runner = StallingRunner(settings, base, model)
        self._loader = AdapterLoader(
            LocalAdapterStore(folder / "store"),
            base,
            self.runner.base_tensors,
            on_completed=lambda: self.loop.wake(),
        )
        self.core = EngineCore(settings, base, self.runner, self._loader, engine_id)
        self.has_hung = threading.Event()
        transport = EngineTransport(redis_url, engine_id, secret=QUEUE_SECRET)
        self.loop = EngineLoop(self.core, transport, settings, on_hang=self._fall_silent)
        self._thread = threading.Thread(target=self.loop.run)

    def __enter__(self) -> RunningEngine:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.stop()
        self.runner.may_run.set()
        self.join()
        self._loader.close()

    def join(self) -> None:
        self._thread.join(timeout=30)
        assert not self._thread.is_alive(), "the loop did not stop"

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    @property
    def is_empty(self) -> bool:
        num_available = self.core.scheduler.num_available_pages
        return not self.core.has_work and num_available == self.core.pool.num_pages

    def _fall_silent(self) -> None:
        """In the place of the end of the process."""
        self.loop.stop()
        self.has_hung.set()
