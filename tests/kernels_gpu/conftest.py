"""Kernels in Triton's interpreter, on CPU tensors, in a process of their own.

Triton reads these variables while it is imported, and its library functions are jitted or
interpreted for good from then on: so they are checked before anything imports it.
"""

from __future__ import annotations

import os

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.exit(
        "tests/kernels_gpu need TRITON_INTERPRET=1 from the start: "
        "TRITON_INTERPRET=1 OMP_NUM_THREADS=1 pytest tests/kernels_gpu (or `make kernels`)",
        returncode=pytest.ExitCode.USAGE_ERROR,
    )
# Whether a * b + c becomes one fma. Triton's default is about to change, and 3.9 says so.
os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"

import hypothesis
import torch

from tests.kernels_gpu import bfloat16_shim

torch.set_num_threads(1)
bfloat16_shim.install()

# The same examples on every machine, and no limit on one: an interpreted kernel is slow.
hypothesis.settings.register_profile("kernels", derandomize=True, deadline=None)
hypothesis.settings.register_profile(
    "first_failure",
    parent=hypothesis.settings.get_profile("kernels"),
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)
hypothesis.settings.load_profile("kernels")


def pytest_configure(config: pytest.Config) -> None:
    # A GPU makes infinities and NaN in silence, and masked rows hold them on purpose.
    config.addinivalue_line("filterwarnings", "ignore::RuntimeWarning")
