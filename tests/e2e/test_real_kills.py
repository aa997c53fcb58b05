"""Two real engines on a tiny model are killed while clients stream: `make faults` kills more."""

from __future__ import annotations

from tests.faults.test_real_kills import (
    real_campaign,
    test_streams_of_real_engines_survive_kills_byte_for_byte,
)

__all__ = ["real_campaign", "test_streams_of_real_engines_survive_kills_byte_for_byte"]
