"""The base's own weights, for what an adapter says relative to them.

Knows nothing of adapters. Invariant: what it returns is what the engine computes with, that is,
the checkpoint's numbers rounded to the compute dtype. Reads from disk: not for the step loop.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from lora.base_files import BaseFiles
from lora.base_spec import BaseSpec
from lora.sites import ModuleKey
from lora.span_reader import SpanReader


class BaseTensors:
    """One base model's weights and biases, read when asked for."""

    def __init__(self, folder: Path, base: BaseSpec, dtype: torch.dtype) -> None:
        """Raises UnsupportedBaseError where the folder's files cannot be read."""
        self.files = BaseFiles.from_folder(folder, base)
        self._dtype = dtype

    def weight(self, key: ModuleKey) -> Tensor:
        """[out, in] of a linear module, [rows, hidden] of the embedding, [hidden] of a norm."""
        return self._read(key, "weight")

    def bias(self, key: ModuleKey) -> Tensor:
        """[out]."""
        return self._read(key, "bias")

    def _read(self, key: ModuleKey, kind: str) -> Tensor:
        """float32. Raises OSError where the file is shorter than its header says."""
        found = self.files.find(key, kind)
        assert found is not None, (key, kind)
        path, span = found
        with path.open("rb", buffering=0) as file:
            return SpanReader(file.fileno()).read(span).to(self._dtype).float()
