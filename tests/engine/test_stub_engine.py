"""The stub engine: the same tokens whatever the schedule, and misuse of pages is seen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import pytest

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import EngineRequest, TokenOutput
from tests.builders.adapters import TINY_BASE
from tests.builders.engines import make_request, tokens_of
from tests.builders.scripted_loader import make_ref
from tests.stub_engine.clock import VirtualClock
from tests.stub_engine.loader import DelayedLoader
from tests.stub_engine.memory import MisuseError
from tests.stub_engine.runner import HashRunner, StepCosts, generate

BLOCK_SIZE = 8


class Stub:
    def __init__(
        self, max_in_flight: int = 1, num_pages: int = 40, delay_s: float = 0.0, **config: int
    ) -> None:
        settings = EngineConfig(block_size=BLOCK_SIZE, debug_poison_pages=True, **config)
        settings = settings.with_pool_bytes(num_pages * settings.page_bytes(TINY_BASE))
        self.clock = VirtualClock()
        costs = StepCosts(step_s=0.01, token_s=0.001)
        self.runner = HashRunner(
            settings, TINY_BASE, self.clock, costs, max_in_flight=max_in_flight
        )
        self.loader = DelayedLoader(self.runner.memory, self.clock, delay_s=lambda _: delay_s)
        self.core = EngineCore(
            settings, TINY_BASE, self.runner, self.loader, "stub", clock=self.clock
        )

    def run(self, requests: Iterable[EngineRequest]) -> dict[str, list[TokenOutput]]:
        for request in requests:
            self.core.add(request)
        outputs: dict[str, list[TokenOutput]] = defaultdict(list)
        while self.core.has_work:
            for batch in self.core.step().values():
                for output in batch.outputs:
                    outputs[output.request_id].append(output)
            self.core.check_integrity()
            if not self.core.has_runnable and self.loader.next_due is not None:
                self.clock.advance_to(self.loader.next_due)
        return outputs


def some_requests() -> list[EngineRequest]:
    adapters = [None, make_ref("a"), make_ref("b"), make_ref("a")]
    return [
        make_request(f"r{i}", [5] * (9 * i + 1), adapter=adapters[i % 4], max_tokens=20)
        for i in range(8)
    ]


def solo(request: EngineRequest) -> list[int]:
    digest = request.adapter.digest if request.adapter is not None else None
    return generate(request.prompt_token_ids, digest, request.sampling.max_tokens, 128)


@pytest.mark.parametrize("max_in_flight", [1, 2])
@pytest.mark.parametrize("num_pages", [14, 40, 200])
def test_tokens_are_the_hash_of_the_prefix_whatever_the_schedule(
    max_in_flight: int, num_pages: int
) -> None:
    requests = some_requests()
    stub = Stub(max_in_flight, num_pages, delay_s=0.05, max_num_batched_tokens=16)
    tokens = tokens_of(stub.run(requests))
    assert tokens == {request.request_id: solo(request) for request in requests}


def test_time_is_what_the_costs_say() -> None:
    stub = Stub()
    stub.run([make_request("r", [1, 2, 3], max_tokens=3)])
    assert stub.clock() == pytest.approx(3 * 0.01 + (3 + 1 + 1) * 0.001)


def test_an_adapter_that_takes_its_time_is_waited_for_by_its_requests_alone() -> None:
    stub = Stub(delay_s=0.5)
    slow = make_request("slow", [1], adapter=make_ref("a"), max_tokens=1)
    outputs = stub.run([slow, make_request("quick", [2], max_tokens=4)])
    assert list(outputs) == ["quick", "slow"]
    assert stub.clock() == pytest.approx(0.5 + 0.011)


def test_control_a_page_that_holds_something_else_is_seen() -> None:
    stub = Stub()
    stub.core.add(make_request("r", [1, 2, 3], max_tokens=5))
    stub.core.step()
    stub.runner.poison_pages(range(stub.core.pool.num_pages))
    with pytest.raises(MisuseError):
        stub.core.step()


def test_pages_can_be_swapped_out_and_in_elsewhere() -> None:
    memory = Stub().runner.memory
    tables, parent = [[0, 1], [5, 4]], 7
    for position in range(11):
        parent = memory.append(tables[0], position, parent, position)
    memory.write(tables[1], memory.read(tables[0]))
    memory.poison(tables[0])
    assert memory.prefix(tables[1], 11, 7) == parent
    with pytest.raises(MisuseError):
        memory.prefix(tables[0], 11, 7)
