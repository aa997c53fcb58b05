"""The real `tenfold demo`, started once for all end-to-end tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.builders.open_folder import open_folder
from tests.e2e.running_stack import NUM_CHILDREN, RunningStack, start_demo
from tests.faults.campaigns import stub_campaign

__all__ = ["demo", "running_demo", "stub_campaign"]


@pytest.fixture(scope="session")
def running_demo() -> Iterator[RunningStack]:
    """The running demo: process, folder, output. Its answers are equal whatever the batch."""
    with open_folder() as folder:
        demo = start_demo(folder, "--batch-invariant")
        yield demo
        assert demo.ends_whole(signal.SIGTERM, NUM_CHILDREN), "a signal stops every child"


@pytest.fixture(scope="session")
def demo(running_demo: RunningStack) -> dict[str, Any]:
    """The parsed `demo.json`: base_url, admin_url, admin_key, tenants."""
    return running_demo.info
