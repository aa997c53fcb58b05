"""Turns requests away, before anything is done for them, while more comes in than goes out.

Knows nothing of how the queue is kept. Invariants: while next to nothing waits nobody is asked, so
that the door costs nothing; a tenant that asks for less than its share is let in, whatever others
do; who is let in can expect to be leased before its deadline, also where many come at once.
"""

from __future__ import annotations

from functools import partial

from app.auth import Principal
from app.completions.entering import Ahead
from app.completions.service_class import ServiceClass
from app.context import AppContext
from app.errors import UnavailableError
from engine.messages import ServiceTier
from engine.transport.errors import QueueUnavailableError
from engine.transport.load import QueueLoad

FEW = 8
"""Requests that wait; engines look that far ahead, and a pace cannot be judged by fewer."""
UNKNOWN_PACE_RETRY_S = 5.0


async def refuse_overload(
    context: AppContext, principal: Principal, asked: ServiceClass, ahead: Ahead
) -> None:
    """Raises UnavailableError: `overloaded`, with when to come back; or without a queue.

    ahead: who is let in already, and not in the queue yet.
    """
    is_flex, limit_s = asked.tier is ServiceTier.FLEX, asked.queue_timeout_s
    longest_s = context.settings.max_queue_wait_s
    if is_flex:
        context.turnstile.note_flex(principal.key_id)
    else:
        limit_s = min(limit_s, longest_s)
    refusal = await _judge(context, principal, ahead, limit_s, is_flex=is_flex)
    if refusal is None:
        return
    if limit_s >= longest_s:
        again = partial(_judge_again, context, principal)
        context.turnstile.remember(principal.key_id, refusal, longest_s, again)
    raise refusal


async def _judge_again(
    context: AppContext, principal: Principal, ahead: Ahead
) -> UnavailableError | None:
    """Of a request of the key's that nothing is known of but that it is not flex."""
    longest_s = context.settings.max_queue_wait_s
    refusal = await _judge(context, principal, ahead, longest_s, is_flex=False)
    if refusal is not None:
        again = partial(_judge_again, context, principal)
        context.turnstile.remember(principal.key_id, refusal, longest_s, again)
    return refusal


async def _judge(
    context: AppContext, principal: Principal, ahead: Ahead, limit_s: float, *, is_flex: bool
) -> UnavailableError | None:
    """None where whoever comes now is leased within `limit_s`, as far as can be said."""
    if context.queue.num_queued + ahead.num < FEW:
        return None
    try:
        load = await context.redis.ask(partial(context.queue.load, principal.tenant_id))
    except QueueUnavailableError as error:
        raise UnavailableError(internal=str(error)) from error
    load = ahead.and_queued(load)
    wait_s = load.expected_wait_s(
        weight=principal.weight,
        is_flex=is_flex,
        reserved_share=principal.terms.reserved_share,
    )
    if _is_too_much(load, wait_s, limit_s, context.settings.max_queued_requests):
        return _refusal(load, wait_s)
    return None


def _refusal(load: QueueLoad, wait_s: float | None) -> UnavailableError:
    return UnavailableError(
        "The service is overloaded. Please try again later.",
        code="overloaded",
        internal=f"{load}",
        retry_after_s=UNKNOWN_PACE_RETRY_S if wait_s is None else wait_s,
    )


def _is_too_much(load: QueueLoad, wait_s: float | None, limit_s: float, max_queued: int) -> bool:
    if load.num_queued >= max_queued:
        return True
    return load.num_queued >= FEW and wait_s is not None and wait_s > limit_s
