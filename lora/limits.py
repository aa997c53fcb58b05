"""How much an adapter may ask of the reader. Numbers only; `app` settings may lower or raise them.

Invariant: every limit is checked before the thing it limits is read, compiled or multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ManifestLimits:
    """Limits of `lora.manifest.read_manifest`.

    `max_override_bytes` is for whole modules and trained tokens together; None: as they come.
    `max_pattern_chars` is for one key of rank_pattern, alpha_pattern or layers_pattern and for one
    name in a list; `max_regex_chars` for a regex in target_modules or exclude_modules (the ones
    that trainers generate run to 280 characters). `max_scale` bounds |alpha / r|.
    """

    max_rank: int = 1024
    max_tensors: int = 200_000
    max_header_bytes: int = 16 << 20
    max_metadata_bytes: int = 64 << 10
    max_config_bytes: int = 256 << 10
    max_base_name_bytes: int = 1024
    max_patterns: int = 512
    max_pattern_chars: int = 256
    max_regex_chars: int = 512
    max_scale: float = 1e4
    max_override_bytes: int | None = None


DEFAULT_LIMITS = ManifestLimits()
