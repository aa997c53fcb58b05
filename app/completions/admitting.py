"""One HTTP request's place among its tenant's: asked for as a whole, given back when it ends.

Knows nothing of engines or of text. Invariants: a request's choices are admitted together or not at
all; what was reserved for a request that was not accepted is given back here, and for every other
one the ledger's worker does it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import msgspec

from app.adapters.resolver import ResolvedModel
from app.admission.messages import NANOS, Ask, Decision, Prices, Record, SequenceAsk
from app.admission.service import DAY_MS, SpendUnknownError
from app.auth import Principal
from app.context import REGISTRY_SHARE, AppContext
from app.db import tenant_scope
from app.errors import ApiError, PermissionDeniedError, UnavailableError
from app.ids import id_of_hex
from app.plans.limits import Kind, Limit
from app.prices.repository import price_in_force
from app.prices.tables import Price
from app.promptly import promptly
from engine.messages import EngineRequest

MAX_LOADS = 5
DEEP = 32
"""Requests that may wait: from there on a queue that was full is not empty a moment later."""


@dataclass(slots=True)
class Admitted:
    """What was decided. `is_accepted` is set by whoever has committed the acceptance."""

    decision: Decision
    prices: Prices | None
    is_accepted: bool = False

    def record(self, place: int) -> str:
        """What is kept with the acceptance of one sequence, as JSON."""
        ask, verdict = self.decision.ask, self.decision.verdict
        record = Record(
            subjects=ask.subjects,
            tokens=ask.sequences[place].tokens,
            cost=ask.sequences[place].cost,
            day=verdict.now_ms // DAY_MS,
            now_ms=verdict.now_ms,
            prices=self.prices,
        )
        if place == 0:
            record = msgspec.structs.replace(
                record,
                all_tokens=sum(each.tokens for each in ask.sequences),
                limits=ask.limits,
                checks=verdict.checks,
            )
        return msgspec.json.encode(record).decode()


@asynccontextmanager
async def admitted(
    context: AppContext,
    principal: Principal,
    model: ResolvedModel,
    requests: Sequence[EngineRequest],
    num_choices_per_prompt: int,
) -> AsyncIterator[Admitted]:
    """Reserve what the sequences may use, until the block ends.

    Raises ApiError (429) where a limit refuses them, UnavailableError without queue or registry.
    """
    limits = [*principal.terms.limits, *model.limits]
    prices = await _prices(context, principal, limits)
    ask = context.admission.ask(
        request_id=id_of_hex("req", requests[0].request_id.partition("-")[0]),
        tenant_id=principal.tenant_id,
        key_id=principal.key_id,
        counted_key_id=principal.terms.counted_key_id,
        model=model.requested,
        adapter_id=model.adapter_id,
        sequences=[
            _ask_of(request, prices, is_first_choice=place % num_choices_per_prompt == 0)
            for place, request in enumerate(requests)
        ],
        limits=limits,
    )
    admitted = None
    must_release = True  # also where asking was cut short: all of it may have been reserved
    try:
        try:
            decision = await _decide(context, ask)
        except ApiError as error:
            must_release = error.status != 429
            _note_refusal(context, principal, ask, error)
            raise
        context.turnstile.let_in(principal.key_id)
        admitted = Admitted(decision, prices)
        yield admitted
    finally:
        if must_release:
            is_accepted = admitted is not None and admitted.is_accepted
            await context.redis.tell(
                partial(context.admission.release, ask, is_accepted=is_accepted)
            )


async def _decide(context: AppContext, ask: Ask) -> Decision:
    for _ in range(MAX_LOADS):
        try:
            return await context.redis.ask(partial(context.admission.admit, ask))
        except SpendUnknownError:
            await _load_spend(context, ask.tenant_id)
    raise UnavailableError(internal="admission: what the tenant has spent keeps changing")


async def _load_spend(context: AppContext, tenant_id: str) -> None:
    """Nobody is called away where it takes too long: that may lie in how much a tenant has open."""
    if context.registry.availability.is_away:
        raise UnavailableError(internal="registry: away")
    patience_s = REGISTRY_SHARE * context.settings.dependency_timeout_s
    await promptly(context.admission.load(tenant_id), patience_s)


def _note_refusal(context: AppContext, principal: Principal, ask: Ask, error: ApiError) -> None:
    """That a deep queue of its own is full counts for the key's next requests as well."""
    limit = error.details.get("limit", {})
    if (
        error.code == "queue_full"
        and len(ask.sequences) == 1
        and limit["scope"] != "adapter"
        and limit["limit"] >= DEEP
    ):
        refusal = error.again(decision_of=ask.request_id)
        wait_s = context.settings.max_queue_wait_s
        context.turnstile.remember(principal.key_id, refusal, wait_s)
    elif error.status == 429:
        context.turnstile.let_in(principal.key_id)


async def _prices(
    context: AppContext, principal: Principal, limits: Sequence[Limit]
) -> Prices | None:
    """What the tenant pays now, where it has a budget of money.

    Raises PermissionDeniedError where nobody said what a token costs: then no budget can hold.
    """
    budgets = [each for each in limits if each.kind is Kind.COST_PER_MONTH]
    if not budgets:
        return None
    tenant_id, base = principal.tenant_id, context.base.model_id

    async def look_up() -> Price | None:
        async with context.database.session() as session:
            await tenant_scope(session, tenant_id)
            return await price_in_force(session, tenant_id, base, context.now())

    found = await context.registry.look_up(("price", tenant_id, base), look_up)
    if found is None:
        if all(each.mode != "hard" for each in budgets):
            return None
        raise PermissionDeniedError(
            "Your organization has a budget of money, and no price is set for this model.",
            code="price_missing",
        )
    return Prices(
        input=int(found.input_price * NANOS),
        cached=int(found.cached_price * NANOS),
        output=int(found.output_price * NANOS),
    )


def _ask_of(request: EngineRequest, prices: Prices | None, *, is_first_choice: bool) -> SequenceAsk:
    """The most that a sequence may use; the choices of one prompt share it, and pay for it once."""
    num_input = len(request.prompt_token_ids) if is_first_choice else 0
    num_output = request.sampling.max_tokens
    cost = 0
    if prices is not None:
        cost = prices.cost(num_input=num_input, num_cached=0, num_output=num_output)
    return SequenceAsk(id=request.request_id, tokens=num_input + num_output, cost=cost)
