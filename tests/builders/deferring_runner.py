"""The CPU's runner with the manners of a device: its tokens are told one step late.

The id that a placeholder stands for is taken from what the step before sampled, as a device does;
the core learns it when it collects that step.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from engine.config import EngineConfig
from engine.forward_batch import ForwardBatch
from engine.messages import EngineError
from engine.residency import Residency
from engine.scheduler import Step
from engine.step_handle import StepHandle
from lora.base_spec import BaseSpec
from tests.builders.engines import RecordingRunner


class DeferringRunner(RecordingRunner):
    """`row_shift` other than 0 is the negative control: every placeholder from a wrong row."""

    max_in_flight = 2
    row_shift = 0

    def __init__(self, config: EngineConfig, base: BaseSpec, folder: Path) -> None:
        super().__init__(config, base, folder)
        self.num_placeholders = 0
        self._sampled = torch.zeros(0, dtype=torch.int64)

    def execute(self, step: Step, residency: Residency) -> StepHandle:
        handle = super().execute(step, residency)
        outcomes = handle.result()
        # A row without a token has no next step that counts.
        sampled = [
            0 if isinstance(outcome, EngineError) else outcome
            for outcome in map(outcomes.__getitem__, handle.sampling)
        ]
        self._sampled = torch.tensor(sampled, dtype=torch.int64)
        return handle

    def prepare(self, step: Step, residency: Residency) -> ForwardBatch:
        batch = super().prepare(step, residency)
        input_ids = batch.input_ids.clone()
        unknown = input_ids < 0
        rows = (-1 - input_ids[unknown] + self.row_shift) % max(1, len(self._sampled))
        input_ids[unknown] = self._sampled[rows]
        self.num_placeholders += int(unknown.sum())
        return replace(batch, input_ids=input_ids)


class WrongRowRunner(DeferringRunner):
    row_shift = 1
