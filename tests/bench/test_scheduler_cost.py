"""The scheduler's bench runs; how fast it finds the scheduler is for a person to read."""

from __future__ import annotations

from bench.scheduler_cost import measure


def test_a_step_is_timed_from_schedule_to_layout() -> None:
    record = measure("test", num_warming=300, num_steps=40)
    assert 0 < record.scheduling_ms < record.median_ms
    assert 0 < record.layout_ms < record.median_ms
    assert record.tensors_ms > 0
