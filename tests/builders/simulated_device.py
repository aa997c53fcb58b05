"""A runner with a device of its own: a queue of launched steps, and memory that only they write.

A token is a checksum of the prefix that the step finds in the device's pages, and of the adapter
that it finds in the adapter's pages; so a wrong id, a page that was given away too early or an
adapter that was evicted in use gives other tokens. Steps run as late as they can: when their
result is asked for; and pages are copied when the copy is found to be done. Knows nothing of the
scheduler but what a real runner sees.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from engine.adapter_key import adapter_key
from engine.config import EngineConfig
from engine.messages import AdapterRef
from engine.residency import Residency
from engine.scheduler import Step
from engine.sequence import Sequence as EngineSequence
from engine.step_handle import StepHandle

VOCAB = 128


class MisuseError(BaseException):
    """The device was given what it may not use. The core answers an Exception, so this is none."""


def demand(claim: bool, otherwise: str) -> None:
    if not claim:
        raise MisuseError(otherwise)


def next_token(prefix: Sequence[int], adapter: AdapterRef | None) -> int:
    name = adapter.locator if adapter is not None else ""
    return crc32(bytes(prefix) + name.encode()) % VOCAB


def generate(prompt: list[int], adapter: AdapterRef | None, num_tokens: int) -> list[int]:
    """What a sequence gets when nothing ends it early."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(next_token(tokens, adapter))
    return tokens[len(prompt) :]


@dataclass(frozen=True)
class _Rows:
    """One sequence's part of a step, copied when it was launched."""

    sequence: EngineSequence
    input_ids: list[int]
    begin: int
    block_table: list[int]
    adapter_pages: list[int]
    samples: bool

    block_size: int

    @property
    def pages(self) -> set[int]:
        return {*self.block_table, *self.adapter_pages}

    @property
    def written(self) -> set[int]:
        end = self.begin + len(self.input_ids)
        blocks = range(self.begin // self.block_size, -(-end // self.block_size))
        return {self.block_table[index] for index in blocks}

    def clashes_with(self, other: _Rows) -> bool:
        """Whether one of the two writes what the other one has. Both may read a page."""
        return bool(self.written & other.pages or other.written & self.pages)


@dataclass(eq=False)
class _Launched:
    """A step in the device's queue, and its handle."""

    device: SimulatedDevice
    number: int
    rows: list[_Rows]
    before: _Launched | None
    sampled: list[int] = field(default_factory=list)

    @property
    def sampling(self) -> list[EngineSequence]:
        return [rows.sequence for rows in self.rows if rows.samples]

    def result(self) -> Mapping[EngineSequence, int]:
        self.device.run_until(self)
        self.device.log.append(("collect", self.number))
        if self.number in self.device.broken_results:
            raise RuntimeError("kernel failed")
        return dict(zip(self.sampling, self.sampled, strict=True))


@dataclass(eq=False)
class SimulatedTransfer:
    """A copy in the device's queue, which takes effect when it is found to be done."""

    device: SimulatedDevice
    pages: list[int]
    num_polls_left: int
    take_effect: Callable[[], None]
    seconds: float = 1e-3

    def is_done(self) -> bool:
        if self in self.device.transfers:
            self.num_polls_left -= 1
            if self.num_polls_left < 0:
                self.device.transfers.remove(self)
                self.take_effect()
        return self not in self.device.transfers


@dataclass(eq=False)
class SimulatedCopy:
    """Pages on the host; empty until `done`."""

    content: list[list[Any]]
    done: SimulatedTransfer = field(init=False)


class SimulatedDevice:
    """Launches steps without running them; checks that each was given what it may use."""

    def __init__(self, config: EngineConfig, max_in_flight: int, copy_lag: int = 0) -> None:
        """copy_lag: how often a copy is found not to be done yet."""
        self.max_in_flight = max_in_flight
        self.log: list[tuple[str, int]] = []
        self.num_starts: Counter[str] = Counter()
        """How often each request was computed from its first token on."""
        self.broken_launches: set[int] = set()
        self.broken_results: set[int] = set()
        self.copy_lag = copy_lag
        self.transfers: list[SimulatedTransfer] = []
        """Copies under way."""
        self.num_swaps: Counter[str] = Counter()
        self._config = config
        self._memory: dict[int, list[Any]] = {}
        self._queue: deque[_Launched] = deque()
        self._last: _Launched | None = None
        self._num_launched = 0

    def install(self, ref: AdapterRef, pages: Sequence[int]) -> None:
        """Copy an adapter into its pages at once, whatever waits in the queue."""
        for page in pages:
            self._memory[page] = [ref] * self._config.block_size

    def execute(self, step: Step, residency: Residency) -> StepHandle:
        demand(0 < sum(step.values()) <= self._config.max_num_batched_tokens, "too many tokens")
        demand(len(step) <= self._config.max_num_seqs, "too many sequences")
        demand(len(self._queue) < self.max_in_flight, "too many steps in flight")
        number = self._num_launched
        self._num_launched += 1
        if number in self.broken_launches:
            raise RuntimeError("launch failed")
        pages_of = dict(residency.owners())
        order = sorted(step, key=lambda each: (str(each.adapter), -each.arrival))
        adapters = [each.adapter for each in order if each.adapter is not None]
        demand(all(map(residency.is_installed, adapters)), "an adapter that is being copied")
        rows = [self._rows(sequence, step[sequence], pages_of) for sequence in order]
        launched = _Launched(self, number, rows, self._last)
        self._check(launched)
        self._queue.append(launched)
        self._last = launched
        self.log.append(("launch", number))
        return launched

    def poison_pages(self, pages: Sequence[int]) -> None:
        """They are in no step that waits, so that this may happen at once."""
        copied = {page for transfer in self.transfers for page in transfer.pages}
        demand(not copied & set(pages), "a page became free while it is copied")
        for page in pages:
            self._memory.pop(page, None)

    def swap_out(self, pages: Sequence[int]) -> SimulatedCopy:
        self.num_swaps["out"] += 1
        copy = SimulatedCopy([])
        last = self._last

        def read() -> None:
            if last is not None:
                self.run_until(last)
            for page in pages:
                demand(page in self._memory, "a page was lost before it was copied")
                copy.content.append(list(self._memory[page]))

        copy.done = self._queue_copy(pages, read)
        return copy

    def swap_in(self, copy: SimulatedCopy, pages: Sequence[int]) -> SimulatedTransfer:
        self.num_swaps["in"] += 1
        demand(copy.done not in self.transfers, "swapped in before it was out")
        demand(len(copy.content) == len(pages), "as many pages as were swapped out")

        def write() -> None:
            for page, content in zip(pages, copy.content, strict=True):
                self._memory[page] = list(content)

        return self._queue_copy(pages, write)

    def _queue_copy(self, pages: Sequence[int], effect: Callable[[], None]) -> SimulatedTransfer:
        transfer = SimulatedTransfer(self, list(pages), self.copy_lag, effect)
        self.transfers.append(transfer)
        return transfer

    def run_until(self, step: _Launched) -> None:
        while step in self._queue:
            self._run(self._queue.popleft())

    def resolve(self, row: int, sampled: Sequence[int]) -> int:
        """The id that a placeholder for `row` stands for."""
        return sampled[row]

    def _rows(
        self, sequence: EngineSequence, num_tokens: int, pages_of: Mapping[Any, list[int]]
    ) -> _Rows:
        begin = sequence.num_computed_tokens
        end = begin + num_tokens
        demand(not sequence.is_finished, "a sequence that has ended")
        demand(0 < num_tokens <= sequence.num_uncomputed_tokens, "tokens that it does not have")
        num_wanted = sequence.num_prompt_tokens + sequence.request.sampling.max_tokens
        demand(end < num_wanted, "a token that nobody wants")
        self.num_starts[sequence.request_id] += begin == 0
        adapter_pages: list[int] = []
        if sequence.adapter is not None:
            adapter_pages = list(pages_of[adapter_key(sequence.adapter)])
            demand(bool(adapter_pages), "an adapter that is not in the pool")
        return _Rows(
            sequence,
            sequence.token_ids[begin:end],
            begin,
            list(sequence.block_table),
            adapter_pages,
            samples=end == sequence.num_tokens,
            block_size=self._config.block_size,
        )

    def _check(self, launched: _Launched) -> None:
        before = launched.before
        for rows in launched.rows:
            *known, last = rows.input_ids
            demand(all(0 <= token_id < VOCAB for token_id in known), "an id that is none")
            if last < 0:
                sampling = before.sampling if before is not None else []
                demand(sampling[-1 - last : -last] == [rows.sequence], "another one's row")
            for transfer in self.transfers:
                is_copied = rows.pages & set(transfer.pages)
                demand(not is_copied, "these pages are being copied")
            for step in self._queue:
                for others in step.rows:
                    if others.sequence is not rows.sequence:
                        in_use = rows.clashes_with(others)
                        demand(not in_use, "these pages are in use by a step in flight")

    def _run(self, launched: _Launched) -> None:
        for rows in launched.rows:
            sampled_before = launched.before.sampled if launched.before is not None else []
            size, end = self._config.block_size, rows.begin + len(rows.input_ids)
            for position, token_id in enumerate(rows.input_ids, rows.begin):
                if token_id < 0:
                    token_id = self.resolve(-1 - token_id, sampled_before)
                page = self._memory.setdefault(rows.block_table[position // size], [None] * size)
                page[position % size] = token_id
            adapter = rows.sequence.adapter
            for page_id in rows.adapter_pages:
                demand(self._memory[page_id] == [adapter] * size, "the adapter is gone")
            if rows.samples:
                prefix = [self._memory[rows.block_table[i // size]][i % size] for i in range(end)]
                demand(all(isinstance(token_id, int) for token_id in prefix), "a foreign page")
                launched.sampled.append(next_token(prefix, adapter))
        launched.before = None
