"""Fixtures of the adapter tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.adapters import ManifestReader


@pytest.fixture
def read(tmp_path: Path) -> ManifestReader:
    """Reads a manifest from a configuration and tensors made by hand."""
    return ManifestReader(tmp_path)
