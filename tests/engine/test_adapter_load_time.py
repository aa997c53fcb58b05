"""How long a request waited for its adapter is said with its tokens."""

from __future__ import annotations

from engine.messages import TokenOutput
from tests.builders.engines import make_request
from tests.builders.scripted_loader import make_ref
from tests.engine.test_stub_engine import Stub


def load_ms(outputs: list[TokenOutput]) -> set[int]:
    return {output.adapter_load_ms for output in outputs}


def test_a_request_that_waited_for_its_adapter_says_how_long() -> None:
    stub = Stub(delay_s=0.5)
    adapter = make_ref("a")
    outputs = stub.run([make_request("cold", [1], adapter=adapter, max_tokens=3)])
    assert load_ms(outputs["cold"]) == {500}


def test_a_request_whose_adapter_is_there_or_that_has_none_waited_for_nothing() -> None:
    stub = Stub(delay_s=0.5)
    adapter = make_ref("a")
    stub.run([make_request("cold", [1], adapter=adapter, max_tokens=1)])
    outputs = stub.run(
        [
            make_request("warm", [1], adapter=adapter, max_tokens=3),
            make_request("base", [2], max_tokens=3),
        ]
    )
    assert load_ms(outputs["warm"]) == load_ms(outputs["base"]) == {0}
