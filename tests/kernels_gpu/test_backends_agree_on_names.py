"""The GPU backends have exactly the functions of `KernelBackend`, and their parameters."""

from __future__ import annotations

import pytest

from kernels.backends import choose_backend
from tests.builders.backend_names import differences


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_a_gpu_backend_offers_exactly_the_ops(batch_invariant: bool) -> None:
    module = choose_backend("gpu", batch_invariant=batch_invariant)
    assert differences(module) == []
