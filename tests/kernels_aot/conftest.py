"""Kernels compiled ahead of time, in a process that does not interpret them."""

from __future__ import annotations

import os

import pytest

if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
    pytest.exit(
        "tests/kernels_aot compile: run them without TRITON_INTERPRET (or `make kernels`)",
        returncode=pytest.ExitCode.USAGE_ERROR,
    )
os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"


@pytest.fixture(autouse=True, scope="session")
def no_trace_in_the_home_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
