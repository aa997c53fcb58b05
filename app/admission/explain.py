"""Why one request was admitted, or was not.

Knows nothing of HTTP. An admission is kept with the request that it accepted, for good; a refusal
in Redis, for an hour, the latest thousand of a tenant. Invariant: what is shown was recorded by the
decision itself; nothing is worked out afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.admission.messages import Check, CountedLimit, Decision, Record
from app.admission.service import Admission
from app.errors import NotFoundError
from app.ids import hex_of, id_of_hex
from app.requests.repository import find_request
from app.tables import AcceptedRequest

_HTTP_ID = re.compile(r"req_[0-7][0-9a-hjkmnp-tv-z]{25}")
_ANSWER_ID = re.compile(r"(?:chatcmpl-|cmpl-)?([0-9a-f]{32})(?:-[0-9]{1,6})?")


@dataclass(frozen=True, slots=True)
class Explanation:
    request_id: str
    tenant_id: str
    key_id: str
    adapter_id: str | None
    model: str
    is_refused: bool
    now_ms: int
    num_reserved_tokens: int
    checked: Sequence[tuple[CountedLimit, Check]]


async def explain(session: AsyncSession, admission: Admission, reference: str) -> Explanation:
    """By the `x-request-id` of an answer, its body's id, or the id of one of its choices.

    Raises NotFoundError, UnavailableError, QueueUnavailableError.
    """
    digits = _digits_of(reference)
    request = await find_request(session, f"{digits}-0")
    if request is not None and request.decision is not None:
        return _of_accepted(request, msgspec.convert(request.decision, Record))
    refused = await admission.find_refusal(id_of_hex("req", digits))
    if refused is None:
        raise NotFoundError("No decision about such a request is kept.", param="request_id")
    return _of_refused(refused)


def _digits_of(reference: str) -> str:
    if _HTTP_ID.fullmatch(reference):
        return hex_of(reference)
    found = _ANSWER_ID.fullmatch(reference)
    if found is None:
        raise NotFoundError("No decision about such a request is kept.", param="request_id")
    return found[1]


def _of_accepted(request: AcceptedRequest, record: Record) -> Explanation:
    return Explanation(
        request_id=id_of_hex("req", request.request_id.partition("-")[0]),
        tenant_id=request.tenant_id,
        key_id=request.key_id,
        adapter_id=request.adapter_id,
        model=request.model,
        is_refused=False,
        now_ms=record.now_ms,
        num_reserved_tokens=record.all_tokens,
        # Of a repeated ask (a worker died amid it) no check is kept: see `Decision.checked`.
        checked=list(zip(record.limits, record.checks, strict=False)),
    )


def _of_refused(decision: Decision) -> Explanation:
    ask = decision.ask
    return Explanation(
        request_id=ask.request_id,
        tenant_id=ask.tenant_id,
        key_id=ask.key_id,
        adapter_id=ask.adapter_id,
        model=ask.model,
        is_refused=True,
        now_ms=decision.verdict.now_ms,
        num_reserved_tokens=0,
        checked=list(decision.checked()),
    )
