"""The machine that a model runs on: where its tensors lie, how copies run beside its work.

The only file that knows CUDA. `HostDevice` does the same things in order and at once, so that
whatever is written against `Device` also runs, and is tested, without a GPU. Knows nothing of
models or pages. Invariant: no method but `Event.wait` and `capture` waits for the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Event(Protocol):
    """A point in a queue of the device's work."""

    def is_done(self) -> bool: ...

    def wait(self) -> None:
        """Block this thread until everything before the point is done."""

    def seconds_since(self, earlier: Event) -> float:
        """Between two points of the same queue that were recorded `timed` and are done."""


class Graph(Protocol[T_co]):
    """Work that was recorded once and runs again on the same memory."""

    def replay(self) -> T_co:
        """Queue it; what `run` returned, with the new values."""


class Device(Protocol):
    """One GPU, or this host. Work is queued in order; `copies` is a second queue beside it."""

    @property
    def target(self) -> torch.device:
        """Where the model's tensors are."""

    def host_empty(self, num_bytes: int) -> Tensor:
        """Unwritten host memory [num_bytes] uint8 that copies can use while the CPU goes on."""

    def record(self, *, timed: bool = False) -> Event:
        """The point after all that has been queued on the current queue."""

    def copies(self) -> AbstractContextManager[None]:
        """What is queued inside runs beside the model, after what has been queued before."""

    def capture(self, run: Callable[[], T]) -> Graph[T]:
        """Record `run`, which must do the same work on the same memory each time."""

    def memory(self) -> tuple[int, int] | None:
        """(free, total) bytes of the device; None where the pool's size is a matter of choice."""


class _DoneEvent:
    def __init__(self) -> None:
        self._at = time.perf_counter()

    def is_done(self) -> bool:
        return True

    def wait(self) -> None:
        pass

    def seconds_since(self, earlier: Event) -> float:
        assert isinstance(earlier, _DoneEvent)
        return self._at - earlier._at


class _HostGraph(Generic[T]):
    """Runs the function itself again: what it closed over stays as it was when captured."""

    def __init__(self, run: Callable[[], T]) -> None:
        self._run = run

    def replay(self) -> T:
        return self._run()


class HostDevice:
    """This machine's CPU: everything queued is done at once."""

    target = torch.device("cpu")

    def host_empty(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)

    def record(self, *, timed: bool = False) -> Event:
        return _DoneEvent()

    def copies(self) -> AbstractContextManager[None]:
        return nullcontext()

    def capture(self, run: Callable[[], T]) -> Graph[T]:
        return _HostGraph(run)

    def memory(self) -> tuple[int, int] | None:
        return None


class _CudaEvent:
    def __init__(self, *, timed: bool) -> None:
        self._event = torch.cuda.Event(enable_timing=timed)  # type: ignore[no-untyped-call]
        self._event.record()

    def is_done(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self._event.synchronize()

    def seconds_since(self, earlier: Event) -> float:
        assert isinstance(earlier, _CudaEvent)
        milliseconds: float = earlier._event.elapsed_time(self._event)
        return milliseconds / 1e3


class _CudaGraph(Generic[T]):
    def __init__(self, graph: torch.cuda.CUDAGraph, output: T) -> None:
        self._graph = graph
        self._output = output

    def replay(self) -> T:
        self._graph.replay()
        return self._output


class CudaDevice:
    """One NVIDIA GPU of this process."""

    def __init__(self, index: int = 0) -> None:
        self.target = torch.device("cuda", index)
        torch.cuda.set_device(self.target)
        self._copy_stream = torch.cuda.Stream(self.target)  # type: ignore[no-untyped-call]
        self._graph_memory = torch.cuda.graph_pool_handle()

    def host_empty(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def record(self, *, timed: bool = False) -> Event:
        return _CudaEvent(timed=timed)

    @contextmanager
    def copies(self) -> Iterator[None]:
        # NOTE: pages that a copy writes may be read by steps that are queued already.
        self._copy_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._copy_stream):
            yield

    def capture(self, run: Callable[[], T]) -> Graph[T]:
        run()  # compiles kernels and lets libraries allocate, which a capture must not do
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # All graphs share their scratch memory: only one of them runs at a time.
        # A loader thread may pin memory meanwhile; only this thread's calls are restricted.
        with torch.cuda.graph(graph, pool=self._graph_memory, capture_error_mode="thread_local"):
            output = run()
        return _CudaGraph(graph, output)

    def memory(self) -> tuple[int, int] | None:
        free, total = torch.cuda.mem_get_info(self.target)
        return free, total


def has_cuda() -> bool:
    """Whether this machine and this build of torch have a GPU to run on."""
    return torch.cuda.is_available()


def open_device(name: str) -> Device:
    """`cpu` or `cuda`. Raises ValueError where this machine has none of that name."""
    match name:
        case "cpu":
            return HostDevice()
        case "cuda" if has_cuda():
            return CudaDevice()
        case "cuda":
            raise ValueError("no CUDA device is usable here (is this a CPU build of torch?)")
    raise ValueError(f"no device is called {name!r}")
