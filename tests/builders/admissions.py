"""Questions for admission, in one line each. Knows nothing of HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.admission.messages import Ask, Decision, Prices, SequenceAsk, TenantSpend
from app.admission.service import Admission, SpendUnknownError
from app.plans.limits import Layer, Limit, limits_in_force

KEY = "key_a"


async def nothing_spent(tenant_id: str) -> TenantSpend:
    """A ledger without a row."""
    return TenantSpend(tenant_id=tenant_id, version=0, figures=[], open=[])


def tenant_limits(tenant_id: str = "ten_a", **limits: Any) -> list[Limit]:
    return limits_in_force("tenant", tenant_id, [Layer("tenant", limits)])


def key_limits(key_id: str = KEY, **limits: Any) -> list[Limit]:
    return limits_in_force("key", key_id, [Layer("key", limits)])


def make_ask(
    admission: Admission,
    request_id: str,
    limits: Sequence[Limit] = (),
    *,
    tenant_id: str = "ten_a",
    key_id: str = KEY,
    adapter_id: str | None = None,
    tokens: int = 10,
    num_choices: int = 1,
    prices: Prices | None = None,
) -> Ask:
    """A request of `num_choices` sequences, each of `tokens`."""
    cost = 0 if prices is None else prices.cost(num_input=0, num_cached=0, num_output=tokens)
    return admission.ask(
        request_id=request_id,
        tenant_id=tenant_id,
        key_id=key_id,
        counted_key_id=key_id,
        adapter_id=adapter_id,
        model="support-bot",
        sequences=[
            SequenceAsk(id=f"{request_id}-{k}", tokens=tokens, cost=cost)
            for k in range(num_choices)
        ],
        limits=limits,
    )


async def admit(
    admission: Admission, request_id: str, limits: Sequence[Limit] = (), **fields: Any
) -> Decision:
    return await admit_ask(admission, make_ask(admission, request_id, limits, **fields))


async def admit_ask(admission: Admission, ask: Ask) -> Decision:
    """As the API does, but without an end to its patience."""
    while True:
        try:
            return await admission.admit(ask)
        except SpendUnknownError:
            await admission.load(ask.tenant_id)
