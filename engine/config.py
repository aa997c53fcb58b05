"""What an engine is told at start, and what follows from it. Frozen; torch-free.

Knows nothing of where the settings come from (`engine/__main__.py` reads them).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from lora.base_spec import BaseSpec

PAGE_ALIGNMENT_BYTES = 4096
DTYPE_BYTES = {"float32": 4, "bfloat16": 2}
CPU_POOL_BYTES = 1 << 30
GPU_MEMORY_UTILIZATION = 0.95
HOST_BYTES = 1 << 30
PREFIX_PROTECTED_SHARE = 0.25

Dtype = Literal["float32", "bfloat16"]
DeviceName = Literal["cpu", "cuda"]
DeviceOption = Literal["auto", "cpu", "cuda"]
Preemption = Literal["auto", "swap", "recompute"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits of one engine. Bytes are bytes, lengths are tokens."""

    device: DeviceName = "cpu"
    dtype: Dtype = "float32"
    backend: str | None = None
    """The module of kernels; unset, it follows from the device."""
    batch_invariant: bool = False
    block_size: int = 16
    pool_bytes: int | None = None
    """Bytes of the page pool. Unset, the next two decide."""
    cpu_pool_bytes: int = CPU_POOL_BYTES
    """On a CPU."""
    gpu_memory_utilization: float = GPU_MEMORY_UTILIZATION
    """Of a GPU's memory: what the model leaves of this share is the pool."""
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 128
    num_look_ahead: int = 8
    """Waiting requests beyond `max_num_seqs` that are leased so that their adapters can load."""
    max_loads: int = 8
    """Adapters that are being read, or were and have no pages yet."""
    max_age_s: float = 0.5
    """From then on a sequence that waits for room is not passed over any more."""
    overtaking_slack_tokens: int = 1024
    """Until then, by sequences of tenants that have had at most so much more."""
    prefix_caching: bool = True
    prefix_protected_share: float = PREFIX_PROTECTED_SHARE
    """Of the pool: where tenants' cold prefixes are safe from each other, in equal shares."""
    shared_prefixes: tuple[tuple[int, ...], ...] = ()
    """Token ids of prompts' beginnings whose blocks all tenants share, on the base alone."""
    preemption: Preemption = "auto"
    """What becomes of a running sequence's pages when others need them: moved to the host, computed
    again later, or whichever costs less. Where the host has no room they are computed again."""
    host_bytes: int = HOST_BYTES
    """The host's memory for what left the pool: preempted sequences' pages, and adapters."""
    prefill_tokens_per_s: float = 1e3
    """This and the next two are guesses, until the engine has measured them."""
    load_bytes_per_s: float = 5e8
    link_bytes_per_s: float = 1e10
    drain_s: float = 8.0
    """How long what runs may go on when the engine is asked to end; then it is handed over."""
    step_limit_s: float = 5.0
    """A step that takes longer than this, and longer than any before it, hangs."""
    debug_poison_pages: bool = False
    """Fill every page that becomes free with NaN."""

    @property
    def kernel_backend(self) -> str:
        return self.backend or {"cpu": "cpu", "cuda": "gpu"}[self.device]

    def with_pool_bytes(self, pool_bytes: int) -> EngineConfig:
        """The same settings with a pool of that size."""
        return replace(self, pool_bytes=pool_bytes)

    @property
    def max_num_leased(self) -> int:
        """All requests at a time, also those that only wait for an adapter to be read."""
        return 4 * self.max_num_seqs + self.num_look_ahead

    def page_bytes(self, base: BaseSpec) -> int:
        """K and V of `block_size` tokens for all layers, rounded up to whole 4 KiB."""
        per_token = 2 * base.num_layers * base.num_kv_heads * base.head_dim
        raw = per_token * self.block_size * DTYPE_BYTES[self.dtype]
        return -(-raw // PAGE_ALIGNMENT_BYTES) * PAGE_ALIGNMENT_BYTES

    def num_pages(self, base: BaseSpec) -> int:
        """Pages in the pool. Raises ValueError where not even one fits."""
        pool_bytes = self.pool_bytes
        if pool_bytes is None:
            assert self.device == "cpu", "a GPU's pool is measured before it is counted"
            pool_bytes = self.cpu_pool_bytes
        num_pages = pool_bytes // self.page_bytes(base)
        if num_pages < 1:
            raise ValueError(
                f"pool_bytes {pool_bytes} is less than one page ({self.page_bytes(base)})"
            )
        return num_pages


def choose_device(option: DeviceOption, *, has_cuda: bool) -> DeviceName:
    """What `auto` means on this machine."""
    if option == "auto":
        return "cuda" if has_cuda else "cpu"
    return option


def default_dtype(device: DeviceName) -> Dtype:
    """A GPU has tensor cores for bfloat16; a CPU serves exactly what PEFT computes in float32."""
    return "bfloat16" if device == "cuda" else "float32"
