"""Which runner executes an engine's steps: chosen once, by the backend of the configuration.

Invariant: Triton is imported only where the GPU backend is asked for.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Protocol

from engine.adapter_weights import HostWeights
from engine.config import EngineConfig
from engine.core import Runner
from engine.device import open_device
from engine.model_runner import ModelRunner
from lora.base_spec import BaseSpec
from lora.base_tensors import BaseTensors
from lora.weights import LoraWeights


class ModelHost(Runner, Protocol):
    """A runner as the process that starts it sees it."""

    @property
    def config(self) -> EngineConfig:
        """What it was given, with the pool's size where that was measured."""

    @property
    def base_tensors(self) -> BaseTensors:
        """For loader threads: the base's own weights, as it computes with them."""

    def prepare_adapter(self, weights: LoraWeights) -> HostWeights:
        """For loader threads: the form of an adapter that its kernels read."""


def open_runner(config: EngineConfig, base: BaseSpec, folder: Path) -> ModelHost:
    """Load the base model in `folder` onto the device of `config`.

    Raises:
        ValueError: this machine has no such device, or no room for a pool.
        UnsupportedBaseError: the model is not one that is served.
    """
    device = open_device(config.device)
    if config.kernel_backend != "gpu":
        return ModelRunner(config, base, folder)
    runner: ModelHost = import_module("engine.gpu_runner").GpuRunner(config, base, folder, device)
    return runner
