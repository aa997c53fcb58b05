"""The streams of two tenants in one batch of the real demo: as `make test` asks, and more of it."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import demo, running_demo
from tests.e2e.two_tenants import (
    clients,
    test_mixed_streamed_answers_equal_each_tenants_solo_answer,
)
from tests.faults.campaign import amount

__all__ = [
    "clients",
    "demo",
    "running_demo",
    "test_mixed_streamed_answers_equal_each_tenants_solo_answer",
]

pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.skipif(amount() == "few", reason="`make test` asks as many"),
]
