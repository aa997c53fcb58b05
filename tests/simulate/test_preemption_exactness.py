"""Tokens and logits equal the solo run's to the bit under preemption, for any chunk size.

Three adapters of different ranks and the base, two tenants; too few pages for all of it, so that
adapters come and go as well.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import Preemption
from tests.builders.deferring_runner import DeferringRunner
from tests.builders.engines import EngineHarness, RecordingRunner
from tests.builders.solo_runs import CONFIG, PAGE_BYTES, SoloRuns

CHUNKS = [1, 7, 8, 9, 33, 128, 512]


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> SoloRuns:
    return SoloRuns(tmp_path_factory.mktemp("solo"))


@pytest.mark.parametrize("runner", [RecordingRunner, DeferringRunner])
@pytest.mark.parametrize("preemption", ["swap", "recompute"])
@pytest.mark.parametrize("chunk", CHUNKS)
def test_preemption_changes_no_bit_whatever_the_chunk_size(
    truth: SoloRuns,
    tmp_path: Path,
    chunk: int,
    preemption: Preemption,
    runner: type[RecordingRunner],
) -> None:
    config = replace(
        CONFIG,
        pool_bytes=36 * PAGE_BYTES,
        max_num_batched_tokens=chunk,
        max_num_seqs=6,
        preemption=preemption,
    )
    harness = EngineHarness(truth.base, tmp_path / "store", config, runner)
    truth.check(harness)
    swapping = harness.core.swapping
    # NOTE: steps of one token go to one sequence at a time, so that the others want no pages.
    assert swapping.num_preempted > 0 or chunk == 1
    assert (swapping.num_restored > 0) is (preemption == "swap" and chunk > 1)
    harness.close()
