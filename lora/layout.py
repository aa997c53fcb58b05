"""How much of the page pool an adapter takes. Torch-free.

Here an adapter is charged by its bytes in the compute dtype; on a CPU its tensors are contiguous
and the pages are accounting. Invariant: the charge depends on the true ranks alone.
"""

from __future__ import annotations

from lora.base_spec import BaseSpec
from lora.manifest import AdapterManifest


def adapter_num_bytes(manifest: AdapterManifest, base: BaseSpec, itemsize: int) -> int:
    """Bytes of all A and B at their true ranks."""
    features = base.linear_modules()
    return itemsize * sum(module.rank * sum(features[module.module]) for module in manifest.modules)


def num_pages(num_bytes: int, page_bytes: int) -> int:
    """Whole pages that hold `num_bytes`; an adapter takes at least one."""
    return max(1, -(-num_bytes // page_bytes))
