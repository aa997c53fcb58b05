"""A real model goes on after preemption as if nothing had been, to the bit, swapped or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.config import EngineConfig, Preemption
from engine.kv_cache import CacheShape, LayeredKVCache
from engine.swap import LayeredCopy, LayeredSwapper
from lora.base_spec import BaseSpec
from tests.builders.deferring_runner import DeferringRunner
from tests.builders.engines import EngineHarness, RecordingRunner
from tests.builders.simulation import delivered
from tests.builders.solo_runs import CONFIG, PAGE_BYTES, SoloRuns

SCARCE = replace(CONFIG, pool_bytes=32 * PAGE_BYTES, max_num_batched_tokens=24, max_num_seqs=6)


class MisplacingRunner(RecordingRunner):
    """Negative control: a page goes where another one should, whose own place stays empty."""

    def __init__(self, config: EngineConfig, base: BaseSpec, folder: Path) -> None:
        super().__init__(config, base, folder)
        right = self.swap_in
        self.swap_in = lambda copy, pages: right(copy, _misplaced(pages))


def _misplaced(pages: Sequence[int]) -> list[int]:
    """NOTE: attention does not tell two full pages from each other: positions are in the keys."""
    return [pages[-1], *pages[1:]]


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> SoloRuns:
    return SoloRuns(tmp_path_factory.mktemp("solo"))


@pytest.mark.parametrize("runner", [RecordingRunner, DeferringRunner])
@pytest.mark.parametrize("preemption", ["auto", "swap", "recompute"])
def test_tokens_and_logits_are_the_solo_runs(
    truth: SoloRuns, tmp_path: Path, preemption: Preemption, runner: type[RecordingRunner]
) -> None:
    config = replace(SCARCE, preemption=preemption)
    harness = EngineHarness(truth.base, tmp_path / "store", config, runner)
    truth.check(harness)
    swapping = harness.core.swapping
    assert swapping.num_preempted >= 3
    assert (swapping.num_restored > 0) is (preemption != "recompute")
    assert harness.core.host_tier.num_held_bytes == 0
    harness.close()


def test_a_page_that_does_not_come_back_to_its_place_shows(truth: SoloRuns, tmp_path: Path) -> None:
    config = replace(SCARCE, preemption="swap")

    def tokens_are_true(attempt: int) -> bool:
        store = tmp_path / f"store-{attempt}"
        harness = EngineHarness(truth.base, store, config, MisplacingRunner)
        delivered_tokens = delivered(truth.run_together(harness))
        harness.close()
        return delivered_tokens == truth.tokens

    # Who is swapped out depends on when adapters are there: once in a while nobody is hurt.
    assert not all(map(tokens_are_true, range(5)))


def drawn_cache() -> LayeredKVCache:
    cache = LayeredKVCache(CacheShape(3, 2, 4, 8, torch.float32), num_pages=6)
    for index in range(cache.num_layers):
        for half in cache.layer(index):
            half.normal_()
    return cache


def halves(cache: LayeredKVCache) -> list[Tensor]:
    return [half for index in range(cache.num_layers) for half in cache.layer(index)]


def test_pages_of_every_layer_come_back_whole_to_other_places() -> None:
    cache = drawn_cache()
    before = [half.clone() for half in halves(cache)]
    swapper = LayeredSwapper(cache)
    copy: LayeredCopy = swapper.swap_out([4, 1])
    assert copy.done.is_done() and copy.done.seconds > 0
    cache.poison([4, 1])
    swapper.swap_in(copy, [0, 4])
    for half, was in zip(halves(cache), before, strict=True):
        assert torch.equal(half[:, [0, 4]], was[:, [4, 1]])
        assert torch.equal(half[:, [2, 3, 5]], was[:, [2, 3, 5]])
        assert half[:, 1].isnan().all()
