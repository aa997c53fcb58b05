"""What the registry remembers of a manifest: enough to show, nothing that a loader relies on."""

from __future__ import annotations

from typing import Any

from lora.manifest import AdapterManifest

FORMAT = 2


def summarise(manifest: AdapterManifest) -> dict[str, Any]:
    """Modules, layers, ranks and size of an accepted adapter.

    `format` tells a later reader which keys to expect: 1, where it is absent, has neither
    `overrides` nor `override_bytes`, nor modules that belong to no layer.
    """
    spans = {override.span.name: override.span for override in manifest.overrides}
    return {
        "format": FORMAT,
        "modules": list(dict.fromkeys(each.module for each in manifest.modules)),
        "num_layers": len({each.layer for each in manifest.modules if each.layer >= 0}),
        "overrides": sorted({f"{each.key[1]}.{each.what}" for each in manifest.overrides}),
        "override_bytes": sum(span.end - span.begin for span in spans.values()),
        "max_rank": manifest.max_rank,
        "num_params": manifest.num_params,
        "base_name": manifest.base_name,
    }
