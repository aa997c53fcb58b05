"""What an engine's memory is divided into: the line that an operator reads at start-up.

Arithmetic over shapes; knows nothing of devices. Torch-free.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import DTYPE_BYTES, EngineConfig
from lora.base_spec import MODULES, BaseSpec
from lora.layout import num_pages, page_format, plan_layout, uniform_content

EXAMPLE_RANK = 16


@dataclass(frozen=True, slots=True)
class MemorySplit:
    """Weights beside one pool, and what the pool can hold of one kind or the other."""

    weights_bytes: int
    page_bytes: int
    num_pages: int
    num_tokens: int
    num_adapters: int
    """Of rank 16 on all linear layers, if there were nothing else in the pool."""

    @property
    def pool_bytes(self) -> int:
        return self.num_pages * self.page_bytes

    def __str__(self) -> str:
        return (
            f"weights {_readable(self.weights_bytes)}, pool {_readable(self.pool_bytes)}: "
            f"{self.num_pages} pages of {_readable(self.page_bytes)} for {self.num_tokens} tokens, "
            f"or about {self.num_adapters} adapters of rank {EXAMPLE_RANK}"
        )


def split_memory(config: EngineConfig, base: BaseSpec) -> MemorySplit:
    """config: with the size of its pool, where that was measured."""
    pages = config.num_pages(base)
    return MemorySplit(
        weights_bytes=_num_weights(base) * DTYPE_BYTES[config.dtype],
        page_bytes=config.page_bytes(base),
        num_pages=pages,
        num_tokens=pages * config.block_size,
        num_adapters=pages // _pages_of_adapter(config, base),
    )


def _pages_of_adapter(config: EngineConfig, base: BaseSpec) -> int:
    page_bytes, itemsize = config.page_bytes(base), DTYPE_BYTES[config.dtype]
    layout_format = page_format(base, page_bytes, itemsize)
    layout = plan_layout(uniform_content(base, MODULES, EXAMPLE_RANK), layout_format)
    if config.kernel_backend == "gpu":
        return layout.num_pages
    return num_pages(layout.num_bytes, page_bytes)  # on a CPU its bytes alone are charged


def _num_weights(base: BaseSpec) -> int:
    linears = base.linear_modules().values()
    layer = sum(features_in * features_out for features_in, features_out in linears)
    num_embeddings = 1 if base.tie_word_embeddings else 2
    norms = (2 * base.num_layers + 1) * base.hidden_size
    return base.num_layers * layer + num_embeddings * base.vocab_size * base.hidden_size + norms


def _readable(num_bytes: int) -> str:
    """In the largest unit of which there is at least one."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if num_bytes >= 1 << (10 * power):
            return f"{num_bytes / (1 << (10 * power)):.1f} {unit}"
    return f"{num_bytes} bytes"
