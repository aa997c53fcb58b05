"""One stream's promises: each token once, in order, and always an end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import FinishReason, TokenOutput
from engine.transport.codec import WIRE_VERSION, Codec
from engine.transport.failover import request_to_go_on
from engine.transport.output_stream import Adrift, OutputStream
from tests.builders.requests import make_request


class Ending:
    """What the stream's owner was told."""

    def __init__(self) -> None:
        self.calls: list[bool] = []

    def __call__(self, stream: OutputStream, must_abort: bool) -> None:
        self.calls.append(must_abort)


def make_stream(
    *, delivered: Sequence[int] = (), max_buffered_tokens: int = 1024
) -> tuple[OutputStream, Ending]:
    ending = Ending()
    request = make_request(request_id="req_1", delivered=delivered)
    return OutputStream(request, on_end=ending, max_buffered_tokens=max_buffered_tokens), ending


def tokens(
    index: int, ids: Sequence[int], *, epoch: int = 1, finish: FinishReason | None = None
) -> TokenOutput:
    return TokenOutput(
        request_id="req_1",
        epoch=epoch,
        index=index,
        token_ids=list(ids),
        num_prompt_tokens=3,
        num_generated_tokens=index + len(ids),
        finish_reason=finish,
    )


async def drain(stream: OutputStream) -> list[TokenOutput]:
    return [output async for output in stream]


def token_ids(outputs: Sequence[TokenOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


@given(st.integers(1, 12), st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4))))
def test_tokens_come_once_and_in_order_whatever_is_repeated(
    num_tokens: int, pieces: list[tuple[int, int]]
) -> None:
    truth = list(range(num_tokens))
    stream, _ = make_stream()
    sent = 0
    for begin, length in pieces:
        begin = min(begin, sent)
        end = min(begin + length, num_tokens)
        sent = max(sent, end)
        stream.push(tokens(begin, truth[begin:end]), "engine", 0.0)
    stream.push(tokens(0, truth, finish=FinishReason.STOP), "engine", 0.0)
    outputs = asyncio.run(drain(stream))
    assert token_ids(outputs) == truth
    assert [output.index for output in outputs] == sorted(output.index for output in outputs)
    assert outputs[-1].finish_reason is FinishReason.STOP


async def test_an_old_epoch_is_not_heard() -> None:
    stream, _ = make_stream()
    stream.push(tokens(0, [1], epoch=2), "new", 0.0)
    stream.push(tokens(1, [99], epoch=1, finish=FinishReason.STOP), "zombie", 0.0)
    stream.push(tokens(1, [2], epoch=2, finish=FinishReason.STOP), "new", 0.0)
    assert token_ids(await drain(stream)) == [1, 2]


async def test_the_same_output_under_a_current_epoch_is_heard() -> None:
    """The control of the test above: the epoch is what silences it."""
    stream, _ = make_stream()
    stream.push(tokens(0, [1], epoch=2), "new", 0.0)
    stream.push(tokens(1, [99], epoch=2, finish=FinishReason.STOP), "new", 0.0)
    assert token_ids(await drain(stream)) == [1, 99]


async def test_what_was_delivered_before_is_not_delivered_again() -> None:
    stream, _ = make_stream(delivered=[1, 2])
    stream.push(tokens(1, [2, 3], finish=FinishReason.STOP), "engine", 0.0)
    assert token_ids(await drain(stream)) == [3]


async def test_a_hole_is_never_skipped_and_sets_the_stream_adrift() -> None:
    stream, ending = make_stream()
    stream.push(tokens(0, [1]), "engine", 0.0)
    stream.push(tokens(2, [3]), "engine", 0.0)
    stream.push(tokens(1, [2]), "engine", 0.0)
    assert stream.adrift is Adrift.TORN
    assert stream.token_ids == [1]
    assert ending.calls == []


async def test_two_engines_that_tell_of_one_lease_set_the_stream_adrift() -> None:
    stream, _ = make_stream()
    stream.push(tokens(0, [1]), "engine", 0.0)
    stream.push(tokens(1, [2]), "other", 0.0)
    assert stream.adrift is Adrift.TORN
    assert stream.token_ids == [1]


async def test_what_comes_during_a_move_is_dropped_where_the_request_moved() -> None:
    stream, _ = make_stream()
    stream.push(tokens(0, [1], epoch=1), "old", 0.0)
    stream.hold()
    moved = request_to_go_on(stream, Adrift.DIED)
    stream.push(tokens(1, [99], epoch=1), "old", 0.0)
    stream.move(moved, 0.0, deadline_at=1.0)
    stream.push(tokens(1, [98], epoch=1), "old", 0.0)
    stream.push(tokens(1, [2], epoch=2, finish=FinishReason.STOP), "new", 0.0)
    assert (moved.delivered_token_ids, moved.epoch, moved.num_deaths) == ([1], 1, 1)
    assert token_ids(await drain(stream)) == [1, 2]


async def test_what_comes_during_a_move_is_taken_where_the_request_stayed() -> None:
    stream, _ = make_stream()
    stream.push(tokens(0, [1], epoch=1), "old", 0.0)
    stream.hold()
    stream.push(tokens(1, [2], epoch=1, finish=FinishReason.STOP), "old", 0.0)
    stream.resume(0.0)
    assert token_ids(await drain(stream)) == [1, 2]


async def test_a_request_that_is_handed_over_has_not_ended() -> None:
    stream, ending = make_stream()
    stream.push(tokens(0, [1]), "engine", 0.0)
    stream.push(tokens(0, [], finish=FinishReason.HAND_OVER), "engine", 0.0)
    assert stream.adrift is Adrift.HANDED_OVER
    assert request_to_go_on(stream, Adrift.HANDED_OVER).num_deaths == 0
    assert ending.calls == []


async def test_nothing_follows_the_end_and_the_end_is_told_once() -> None:
    stream, ending = make_stream()
    stream.push(tokens(0, [1], finish=FinishReason.STOP), "engine", 0.0)
    stream.push(tokens(1, [2], finish=FinishReason.STOP), "engine", 0.0)
    stream.fail("engine_lost", "gone", must_abort=True)
    assert token_ids(await drain(stream)) == [1]
    stream.close()
    assert ending.calls == [False]


async def test_closing_early_asks_for_an_abort() -> None:
    stream, ending = make_stream()
    stream.push(tokens(0, [1]), "engine", 0.0)
    async with stream:
        assert (await anext(stream)).token_ids == [1]
    assert ending.calls == [True]
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_closing_frees_a_consumer_that_waits() -> None:
    stream, _ = make_stream()
    consumer = asyncio.create_task(drain(stream))
    await asyncio.sleep(0)
    stream.close()
    async with asyncio.timeout(5):
        assert await consumer == []


async def test_a_reader_that_never_reads_is_cut() -> None:
    stream, ending = make_stream(max_buffered_tokens=3)
    for index in range(5):
        stream.push(tokens(index, [index]), "engine", 0.0)
    outputs = await drain(stream)
    assert token_ids(outputs) == [0, 1, 2]
    assert outputs[-1].error is not None and outputs[-1].error.code == "client_too_slow"
    assert ending.calls == [True]


BOUND_BYTES = 16 << 10
"""Of what waits for one reader that does not read, beside the tokens that failover needs anyway."""


def as_received(output: TokenOutput) -> TokenOutput:
    """With strings and numbers of its own, as each message has them."""
    codec = Codec()
    sealed = WIRE_VERSION + msgspec.msgpack.encode(
        {"engine_id": "engine", "outputs": [codec.encode(output)]}
    )
    [received] = codec.decode_batch(sealed)[0].outputs
    return received


def buffered_bytes(stream: OutputStream) -> int:
    waiting = list(stream._buffer)
    assert {id(token) for each in waiting for token in each.token_ids} <= set(
        map(id, stream.token_ids)
    ), "tokens are kept once"
    sizes = [
        sys.getsizeof(part) for each in waiting for part in (each, each.token_ids, each.request_id)
    ]
    return sum(sizes)


async def test_what_waits_for_a_reader_that_does_not_read_is_bounded() -> None:
    stream, _ = make_stream()
    sizes = []
    for index in range(1000):
        stream.push(as_received(tokens(index, [1000 + index])), "engine", 0.0)
        sizes.append(buffered_bytes(stream))
    assert max(sizes) <= BOUND_BYTES
    stream.push(tokens(1000, [7], finish=FinishReason.LENGTH), "engine", 0.0)
    outputs = await drain(stream)
    assert token_ids(outputs) == [*range(1000, 2000), 7]
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    assert [each.index for each in outputs] == list(range(16)), "the first ones come as they came"


def test_control_kept_one_by_one_they_would_be_beyond_the_bound() -> None:
    received = [as_received(tokens(index, [index])) for index in range(1000)]
    parts = [part for each in received for part in (each, each.token_ids, each.request_id)]
    assert sum(map(sys.getsizeof, parts)) > 4 * BOUND_BYTES
