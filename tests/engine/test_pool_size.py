"""What a device's memory leaves to the pool, and the step that is measured before."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from engine.config import CPU_POOL_BYTES, EngineConfig, choose_device, default_dtype
from engine.device import HostDevice, open_device
from engine.memory_split import split_memory
from engine.pool_size import drawn_step, measure_pool_bytes
from engine.server import read_shared_prefixes
from tests.builders.adapters import TINY_BASE

GIB = 1 << 30


class Memory(HostDevice):
    def __init__(self, free: int, total: int) -> None:
        self._memory = (free, total)

    def memory(self) -> tuple[int, int] | None:
        return self._memory


def test_a_share_of_a_large_device_and_a_least_amount_of_a_small_one_stay_free() -> None:
    assert measure_pool_bytes(Memory(60 * GIB, 100 * GIB), 0.95) == 55 * GIB
    assert measure_pool_bytes(Memory(60 * GIB, 100 * GIB), 0.75) == 35 * GIB
    assert measure_pool_bytes(Memory(GIB, GIB), 1.0) == GIB // 2


def test_a_device_that_the_model_fills_is_an_error() -> None:
    with pytest.raises(ValueError, match="no room for a pool"):
        measure_pool_bytes(Memory(GIB // 2, 100 * GIB), 0.95)
    with pytest.raises(ValueError, match="no room for a pool"):
        measure_pool_bytes(Memory(40 * GIB, 100 * GIB), 0.6)


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


def test_the_pool_in_bytes_overrides_what_the_device_has() -> None:
    page_bytes = EngineConfig().page_bytes(TINY_BASE)
    config = EngineConfig(cpu_pool_bytes=7 * page_bytes)
    assert config.num_pages(TINY_BASE) == 7
    assert config.with_pool_bytes(9 * page_bytes).num_pages(TINY_BASE) == 9


def test_start_up_says_what_memory_is_divided_into() -> None:
    config = EngineConfig(cpu_pool_bytes=1 << 24)
    split = split_memory(config, TINY_BASE)
    assert split.num_pages == (1 << 24) // split.page_bytes
    assert split.num_tokens == split.num_pages * config.block_size
    features = sum(sum(each) for each in TINY_BASE.linear_modules().values())
    adapter_bytes = 16 * features * TINY_BASE.num_layers * 4
    assert split.num_adapters == split.num_pages // -(-adapter_bytes // split.page_bytes)
    assert str(split) == (
        "weights 393.8 KiB, pool 16.0 MiB: 1365 pages of 12.0 KiB for 21840 tokens, or about "
        "91 adapters of rank 16"
    )
    on_gpu = split_memory(EngineConfig(device="cuda", pool_bytes=1 << 24), TINY_BASE)
    assert on_gpu.num_adapters <= split.num_adapters, "vectors straddle no page there"


def test_shared_prefixes_are_lists_of_token_ids(tmp_path: Path) -> None:
    path = tmp_path / "prefixes.json"
    path.write_text("[[1, 2, 3], [4]]")
    assert read_shared_prefixes(path) == ((1, 2, 3), (4,))
    assert read_shared_prefixes(None) == ()
    path.write_text('{"text": "hello"}')
    with pytest.raises(msgspec.ValidationError):
        read_shared_prefixes(path)


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
