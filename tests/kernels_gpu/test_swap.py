"""Pages that leave the device come back whole, wherever they are put."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

import kernels.gpu as ops
from engine.config import EngineConfig
from engine.device import Device, HostDevice
from engine.gpu_runner import GpuRunner
from engine.messages import TokenOutput
from engine.swap import HostCopy, Swapper, Transfer
from tests.builders.engines import make_request, tokens_of
from tests.builders.gpu_engines import InterpretedHarness
from tests.builders.lagging_device import LaggingDevice
from tests.builders.peft_models import VARIANTS, make_adapter, make_tiny_llama
from tests.builders.simulation import delivered


def make_swapper(device: Device) -> tuple[Swapper, torch.Tensor]:
    pool = torch.randint(0, 256, (7, 4096), dtype=torch.uint8)
    return Swapper(pool, device, ops), pool


def test_pages_come_back_whole_to_other_places() -> None:
    swapper, pool = make_swapper(HostDevice())
    before = pool.clone()
    copy = swapper.swap_out([5, 1, 2])
    pool[[5, 1, 2]] = 0xFF
    swapper.swap_in(copy, [0, 2, 6]).wait()
    assert torch.equal(pool[[0, 2, 6]], before[[5, 1, 2]])
    assert torch.equal(pool[[3, 4]], before[[3, 4]])
    assert (pool[[1, 5]] == 0xFF).all()


def test_a_copy_that_has_not_arrived_is_not_swapped_in() -> None:
    device = LaggingDevice(lag=1)
    swapper, _ = make_swapper(device)
    copy = swapper.swap_out([3])
    with pytest.raises(AssertionError, match="before it was out"):
        swapper.swap_in(copy, [4])
    copy.done.wait()
    swapper.swap_in(copy, [4])


@pytest.mark.parametrize("is_restored", [True, False])
def test_a_sequence_goes_on_from_pages_that_were_swapped(
    tmp_path_factory: pytest.TempPathFactory, is_restored: bool
) -> None:
    """And its control: without what was swapped out, it says something else."""
    root = tmp_path_factory.mktemp("swap")
    base = make_tiny_llama(root / "base", num_hidden_layers=1)
    config = EngineConfig(pool_bytes=1 << 19, block_size=8, backend="gpu")
    request = make_request("r", list(range(3, 15)), max_tokens=6)
    whole = InterpretedHarness(base, root / "store", config)
    expected = tokens_of(whole.run([request]))["r"]

    harness = InterpretedHarness(base, root / "store", config, max_in_flight=1)
    harness.core.add(request)
    outputs = {"r": harness.step() + harness.step()}
    swapper = Swapper(harness.gpu.kv_cache.pages, HostDevice(), ops)
    pages = list(range(harness.core.pool.num_pages))
    copy = swapper.swap_out(pages)
    with torch.inference_mode():
        harness.gpu.kv_cache.pages[pages] = 0
    if is_restored:
        swapper.swap_in(copy, pages)
    outputs["r"] += harness.finish()["r"]
    assert (tokens_of(outputs)["r"] == expected) == is_restored
    for each in (whole, harness):
        each.close()


class MisplacingRunner(GpuRunner):
    """Negative control: a page goes where another one should, whose own place stays as it was."""

    def swap_in(self, copy: HostCopy, pages: Sequence[int]) -> Transfer:
        return super().swap_in(copy, [pages[-1], *pages[1:]])


@pytest.mark.parametrize("runner", [GpuRunner, MisplacingRunner])
def test_preempted_sequences_go_on_while_copies_take_their_time(
    tmp_path_factory: pytest.TempPathFactory, runner: type[GpuRunner]
) -> None:
    root = tmp_path_factory.mktemp("preempted")
    base = make_tiny_llama(root / "base", num_hidden_layers=1)
    adapter = make_adapter(base, root / "plain", seed=1, **VARIANTS["plain"])
    roomy = EngineConfig(pool_bytes=1 << 19, block_size=8, backend="gpu", preemption="swap")
    whole = InterpretedHarness(base, root / "store", roomy)
    refs = [None, whole.publish(adapter), None]
    requests = [
        make_request(f"r{i}", list(range(3 + i, 21 + i)), adapter=ref, max_tokens=12)
        for i, ref in enumerate(refs)
    ]
    expected = {each.request_id: tokens_of(whole.run([each]))[each.request_id] for each in requests}

    device = LaggingDevice(lag=3)
    config = roomy.with_pool_bytes(11 * roomy.page_bytes(whole.base))
    harness = InterpretedHarness(base, root / "store", config, device=device, runner=runner)
    outputs: dict[str, list[TokenOutput]] = {each.request_id: [] for each in requests}
    for request in requests:
        harness.core.add(request)
    while harness.core.has_work:
        device.now += 1
        for output in harness.step():
            outputs[output.request_id].append(output)
    assert harness.core.swapping.num_restored > 0
    assert (delivered(outputs) == expected) is (runner is GpuRunner)
    for each in (whole, harness):
        each.close()
