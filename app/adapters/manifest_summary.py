"""What the registry remembers of a manifest: enough to show, nothing that a loader relies on."""

from __future__ import annotations

from typing import Any

from lora.base_spec import MODULES
from lora.manifest import AdapterManifest


def summarise(manifest: AdapterManifest) -> dict[str, Any]:
    """Modules, layers, ranks and size of an accepted adapter."""
    used = {module.module for module in manifest.modules}
    return {
        "modules": [name for name in MODULES if name in used],
        "num_layers": len({module.layer for module in manifest.modules}),
        "max_rank": manifest.max_rank,
        "num_params": manifest.num_params,
        "base_name": manifest.base_name,
    }
