"""One copy a step: what is packed comes out as it went in, at addresses that do not move."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.device import HostDevice
from engine.step_buffer import ALIGNMENT_BYTES, StepBuffer, num_bytes, views
from tests.builders.lagging_device import LaggingDevice

shapes = st.lists(
    st.tuples(
        st.sampled_from([np.int32, np.int64, np.float64, np.bool_]),
        st.lists(st.integers(0, 5), max_size=3).map(tuple),
    ),
    max_size=6,
)


def arrays_of(kinds: list[tuple[type, tuple[int, ...]]], seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(0, 99, size).astype(dtype) for dtype, size in kinds]


@given(shapes, st.integers(0, 2**32 - 1))
def test_arrays_come_out_as_they_went_in(
    kinds: list[tuple[type, tuple[int, ...]]], seed: int
) -> None:
    arrays = arrays_of(kinds, seed)
    found = views(StepBuffer(HostDevice(), num_bytes=256).upload(arrays), arrays)
    for view, array in zip(found, arrays, strict=True):
        assert view.shape == array.shape
        assert np.array_equal(view.numpy(), array)
        assert view.numpy().dtype == array.dtype


@given(shapes)
def test_the_next_steps_arrays_lie_where_the_last_steps_did(
    kinds: list[tuple[type, tuple[int, ...]]],
) -> None:
    buffer = StepBuffer(HostDevice())
    first, second = arrays_of(kinds, 1), arrays_of(kinds, 2)
    target = torch.empty(num_bytes(first), dtype=torch.uint8)
    buffer.upload(first, target)
    captured = views(target, first)
    buffer.upload(second, target)
    assert all(
        np.array_equal(view.numpy(), array) for view, array in zip(captured, second, strict=True)
    )


def test_every_array_starts_at_an_address_that_kernels_can_read_widely() -> None:
    arrays = [np.zeros(3, np.int32), np.zeros(5, np.int64), np.zeros((2, 7), np.int32)]
    target = StepBuffer(HostDevice()).upload(arrays)
    starts = [view.data_ptr() - target.data_ptr() for view in views(target, arrays)]
    assert all(start % ALIGNMENT_BYTES == 0 for start in starts)
    assert len(set(starts)) == len(arrays)


def test_strided_arrays_are_packed_by_value() -> None:
    array = np.arange(12, dtype=np.int32).reshape(3, 4).T
    (view,) = views(StepBuffer(HostDevice()).upload([array]), [array])
    assert np.array_equal(view.numpy(), array)


def test_host_memory_is_not_overwritten_while_its_copy_runs() -> None:
    device = LaggingDevice(lag=2)
    buffer = StepBuffer(device, depth=2)
    array = np.arange(4, dtype=np.int32)
    buffer.upload([array])
    buffer.upload([array])
    assert device.num_waits == 0, "there is a slot for each of two steps in flight"
    buffer.upload([array])
    assert device.num_waits == 1


def test_control_without_lag_nothing_waits() -> None:
    device = LaggingDevice(lag=0)
    buffer = StepBuffer(device, depth=2)
    for _ in range(5):
        buffer.upload([np.arange(4, dtype=np.int32)])
    assert device.num_waits == 0
