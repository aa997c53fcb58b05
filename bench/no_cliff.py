"""Is there a cliff where more adapters are registered than fit? Streams that always differ.

Every stream has one request in flight; no two are for the same adapter; which one is drawn by
Zipf's law from as many as are registered. Knows nothing of tables or files. Invariant: what is
predicted comes from the draws, from how many adapters fit and from how long one takes to load while
nothing else runs: never from what is measured after it.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections import OrderedDict
from dataclasses import dataclass

from bench.engine_client import WAIT_S, Answer, EngineClient
from bench.registered_adapters import RANK, RegisteredAdapters
from engine.adapter_loader import AdapterLoader
from engine.config import EngineConfig
from engine.runners import ModelHost
from lora.base_spec import BaseSpec

POPULATIONS = (8, 32, 256, 2000)


@dataclass(frozen=True, slots=True)
class Streams:
    """The load. Lengths are tokens; those of answers are drawn, so that streams do not march."""

    num_streams: int = 8
    prompt_tokens: int = 64
    answer_tokens: tuple[int, int] = (16, 48)
    num_requests: int = 64
    """That count, in one turn: all streams are busy from the first to the last."""
    zipf: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Predicted:
    """Of one population's measured requests."""

    miss_rate: float
    reads: float
    """Adapters that must be read from the store, in a turn."""

    def share(self, seconds: float, load_s: float) -> float:
        """Of a turn's speed that is left, if the step loop stood still for every read.

        seconds: of a turn without loads.
        """
        return seconds / (seconds + self.reads * load_s)


@dataclass(frozen=True, slots=True)
class Turn:
    """One population's turn, measured."""

    seconds: float
    num_tokens: int
    """That came in this time."""
    answers: list[Answer]
    """Of the requests that were made in this time."""
    num_reads: int
    num_from_host: int
    loading_s: list[float]
    """What each step spent on adapters' loading."""

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.seconds

    @property
    def miss_rate(self) -> float:
        return statistics.mean(not answer.was_in_pool for answer in self.answers)


@dataclass(frozen=True, slots=True)
class _Mark:
    at: float
    num_reads: int
    num_kept_installs: int
    num_steps: int


class Draws:
    """Which adapter is asked for next, and how long the answer is; never one in flight."""

    def __init__(self, population: int, streams: Streams) -> None:
        self._rng = random.Random(streams.seed)
        self._lengths = streams.answer_tokens
        self._population = range(population)
        weights = [(rank + 1) ** -streams.zipf for rank in self._population]
        self._cumulative = list(itertools.accumulate(weights))
        self._in_flight: set[int] = set()

    def end(self, adapter: int) -> None:
        """The one that this adapter had in flight ended."""
        self._in_flight.remove(adapter)

    def next(self) -> tuple[int, int]:
        """(adapter, tokens)."""
        if len(self._in_flight) == len(self._population):
            raise RuntimeError("every adapter is in flight")
        while True:
            (adapter,) = self._rng.choices(self._population, cum_weights=self._cumulative)
            if adapter not in self._in_flight:
                self._in_flight.add(adapter)
                return adapter, self._rng.randint(*self._lengths)


def adapter_pages(config: EngineConfig, base: BaseSpec) -> int:
    """Of a registered adapter, in float32 on a CPU."""
    width = (base.num_heads + base.num_kv_heads) * base.head_dim
    num_bytes = 4 * RANK * base.num_layers * (2 * base.hidden_size + width)
    return -(-num_bytes // config.page_bytes(base))


def pool_bytes(config: EngineConfig, base: BaseSpec, fits: int, streams: Streams) -> int:
    """Of a pool for `fits` adapters beside the streams' tokens, half of each answer's."""
    length = streams.prompt_tokens + sum(streams.answer_tokens) / 4
    num_blocks = round(streams.num_streams * (length / config.block_size + 0.5))
    return (num_blocks + fits * adapter_pages(config, base)) * config.page_bytes(base)


def predict(population: int, streams: Streams, num_turns: int, fits: int) -> Predicted:
    """Replay the draws against a pool of `fits` adapters, least recently used first out.

    On the host there is room for whatever was read once, so that only first uses are reads.
    """
    draws = Draws(population, streams)
    pool: OrderedDict[int, None] = OrderedDict()
    seen: set[int] = set()
    in_flight: list[tuple[int, int]] = []  # (when it ends, adapter)
    now = misses = reads = num_counted = 0
    for _ in range(num_turns):
        for number in range(_num_asked(streams)):
            if len(in_flight) == streams.num_streams:
                now, ended = min(in_flight)
                in_flight.remove((now, ended))
                draws.end(ended)
            adapter, length = draws.next()
            in_flight.append((now + length, adapter))
            if number >= 2 * streams.num_streams:
                num_counted += 1
                misses += adapter not in pool
                reads += adapter not in seen
            seen.add(adapter)
            pool[adapter] = None
            pool.move_to_end(adapter)
            if len(pool) > fits:
                pool.popitem(last=False)
    return Predicted(misses / num_counted, reads / num_turns)


def _num_asked(streams: Streams) -> int:
    """In a turn. The first of all streams come at once, those after them spread them out."""
    return 2 * streams.num_streams + streams.num_requests


class Population:
    """An engine whose streams draw from `population` adapters, turn after turn."""

    def __init__(
        self,
        population: int,
        runner: ModelHost,
        base: BaseSpec,
        registered: RegisteredAdapters,
        config: EngineConfig,
        streams: Streams,
    ) -> None:
        self._refs = registered.refs(population)
        self._streams = streams
        self._vocab_size = base.vocab_size
        self._client = EngineClient(runner, base, registered.store, config)
        self._draws = Draws(population, streams)
        self._rng = random.Random(streams.seed)
        self._adapters: dict[str, int] = {}
        """Of each request by its name."""

    def turn(self) -> Turn:
        """Answer a turn's requests; none is left in the engine."""
        first, total = 2 * self._streams.num_streams, _num_asked(self._streams)
        answers = [self._ask() for _ in range(self._streams.num_streams)]
        marks = []
        while self._client.num_under_way:
            for ended in self._client.step():
                self._draws.end(self._adapters[ended.name])
                if len(answers) < total:
                    answers.append(self._ask())
                    if len(answers) in (first, total):
                        marks.append(self._mark())
        begin, end = marks
        return Turn(
            end.at - begin.at,
            sum(begin.at < at <= end.at for each in answers for at in each.token_at),
            answers[first:],
            end.num_reads - begin.num_reads,
            end.num_kept_installs - begin.num_kept_installs,
            self._client.loading_s[begin.num_steps : end.num_steps],
        )

    def close(self) -> None:
        self._client.close()

    def _ask(self) -> Answer:
        adapter, num_tokens = self._draws.next()
        name = str(len(self._adapters))
        self._adapters[name] = adapter
        prompt = self._rng.choices(range(self._vocab_size), k=self._streams.prompt_tokens)
        return self._client.ask(name, self._refs[adapter], prompt, num_tokens)

    def _mark(self) -> _Mark:
        residency = self._client.core.residency
        return _Mark(
            time.perf_counter(),
            residency.num_loads,
            residency.num_kept_installs,
            len(self._client.loading_s),
        )


def time_of_a_load(
    runner: ModelHost, base: BaseSpec, registered: RegisteredAdapters, num_adapters: int = 20
) -> float:
    """Seconds, the median, while nothing else runs."""
    loader = AdapterLoader(
        registered.store,
        base,
        runner.base_tensors,
        prepare=runner.prepare_adapter,
        num_threads=1,
    )
    for ref in registered.refs(num_adapters):
        loader.start(ref)
    taken: list[float | None] = []
    while len(taken) < num_adapters:
        time.sleep(WAIT_S)
        taken += [result.seconds for result in loader.take_completed()]
    loader.close()
    return statistics.median(seconds for seconds in taken if seconds is not None)
