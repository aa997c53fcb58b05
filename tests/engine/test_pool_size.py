"""What a device's memory leaves to the pool, and the step that is measured before."""

from __future__ import annotations

import pytest

from engine.config import CPU_POOL_BYTES, EngineConfig, choose_device, default_dtype
from engine.device import HostDevice, open_device
from engine.pool_size import drawn_step, measure_pool_bytes
from tests.builders.adapters import TINY_BASE

GIB = 1 << 30


class Memory(HostDevice):
    def __init__(self, free: int, total: int) -> None:
        self._memory = (free, total)

    def memory(self) -> tuple[int, int] | None:
        return self._memory


def test_a_share_of_a_large_device_and_a_least_amount_of_a_small_one_stay_free() -> None:
    assert measure_pool_bytes(Memory(60 * GIB, 100 * GIB)) == 55 * GIB
    assert measure_pool_bytes(Memory(GIB, GIB)) == GIB // 2


def test_a_device_that_the_model_fills_is_an_error() -> None:
    with pytest.raises(ValueError, match="no room for a pool"):
        measure_pool_bytes(Memory(GIB // 2, 100 * GIB))


@pytest.mark.parametrize(("num_seqs", "num_tokens"), [(32, 128), (3, 7), (8, 8), (16, 5), (1, 90)])
def test_the_largest_step_has_all_tokens_and_all_its_sequences_sample(
    num_seqs: int, num_tokens: int
) -> None:
    step = drawn_step(num_seqs, num_tokens, block_size=8, max_model_len=1000)
    assert sum(step.values()) == num_tokens
    assert len(step) == min(num_seqs, num_tokens)
    assert all(sequence.num_tokens == length > 0 for sequence, length in step.items())
    assert all(8 * len(sequence.block_table) >= length for sequence, length in step.items())


def test_a_cpus_pool_is_a_gigabyte_unless_told() -> None:
    config = EngineConfig()
    assert config.num_pages(TINY_BASE) == CPU_POOL_BYTES // config.page_bytes(TINY_BASE)
    assert config.with_pool_bytes(1 << 20).num_pages(TINY_BASE) < 100


def test_the_device_decides_the_kernels_and_the_default_dtype() -> None:
    assert choose_device("auto", has_cuda=True) == "cuda"
    assert choose_device("auto", has_cuda=False) == "cpu"
    assert choose_device("cpu", has_cuda=True) == "cpu"
    assert EngineConfig(device="cuda").kernel_backend == "gpu"
    assert EngineConfig().kernel_backend == "cpu"
    assert (default_dtype("cuda"), default_dtype("cpu")) == ("bfloat16", "float32")


def test_a_device_that_is_not_here_is_refused() -> None:
    with pytest.raises(ValueError, match="no device is called"):
        open_device("tpu")
