"""How large the page pool may be on a device whose memory is what limits it.

Knows nothing of models. Invariant: the largest step that can be scheduled (`drawn_step`) has run
before free memory is measured, so that its activations are not promised to the pool.
"""

from __future__ import annotations

from engine.device import Device
from engine.messages import EngineRequest, SamplingParams
from engine.scheduler import Step
from engine.sequence import Sequence

HEADROOM_BYTES = 1 << 29
"""Kept free at least: captured graphs, adapters' tables, and the allocator's slack."""


def measure_pool_bytes(device: Device, utilization: float) -> int:
    """What is free on `device` now, less what may not be used. Raises ValueError where that is
    nothing.

    utilization: of all the device's memory, what this process and others may use together.
    """
    memory = device.memory()
    assert memory is not None, "only a GPU's memory is measured"
    free, total = memory
    pool_bytes = free - max(round((1 - utilization) * total), HEADROOM_BYTES)
    if pool_bytes <= 0:
        raise ValueError(f"{free} of {total} bytes are free beside the model: no room for a pool")
    return pool_bytes


def drawn_step(num_seqs: int, num_tokens: int, block_size: int, max_model_len: int) -> Step:
    """A step of `num_tokens` tokens, shared out among sequences that all sample, all in page 0."""
    num_seqs = min(num_seqs, num_tokens)
    least, rest = divmod(num_tokens, num_seqs)
    lengths = [min(least + (index < rest), max_model_len - 1) for index in range(num_seqs)]
    return {_sequence(index, length, block_size): length for index, length in enumerate(lengths)}


def _sequence(index: int, length: int, block_size: int) -> Sequence:
    request = EngineRequest(
        request_id=f"start-up-{index}",
        tenant_id="",
        api_id="",
        epoch=0,
        prompt_token_ids=[0] * length,
        sampling=SamplingParams(seed=0, max_tokens=1, temperature=1.0, top_k=50, top_p=0.9),
    )
    sequence = Sequence(request, index)
    sequence.block_table = [0] * -(-length // block_size)
    return sequence
