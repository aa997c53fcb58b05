"""Decisions as operators are shown them. Knows nothing of Redis or SQL."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal, Self

from pydantic import BaseModel

from app.admission.explain import Explanation
from app.admission.messages import Check, CountedLimit
from app.admission.refusals import NEVER_MS, shown
from app.bodies import Timestamp


class CheckView(BaseModel):
    """How one limit stood before the request; money in millionths of the currency.

    `outcome`: `passed`; `refused` where it was reached; `over` where it was and only records.
    `free_at`: when the request would have passed; null where it did, or never would.
    """

    kind: str
    scope: str
    id: str
    mode: str
    source: str
    limit: int
    used: int
    requested: int
    outcome: Literal["passed", "refused", "over"]
    free_at: Timestamp | None

    @classmethod
    def of(cls, limit: CountedLimit, check: Check, now_ms: int) -> Self:
        outcome: Literal["passed", "refused", "over"] = "passed"
        if check.is_over:
            outcome = "refused" if limit.mode == "hard" else "over"
        free_at = None
        if check.is_over and check.free_ms != NEVER_MS:
            free_at = datetime.fromtimestamp((now_ms + check.free_ms) / 1000, UTC)
        return cls(
            kind=limit.kind,
            scope=limit.scope,
            id=limit.subject_id,
            mode=limit.mode,
            source=limit.source,
            limit=shown(limit, limit.limit),
            used=shown(limit, check.used),
            requested=shown(limit, check.amount),
            outcome=outcome,
            free_at=free_at,
        )


class DecisionView(BaseModel):
    """Why a request was admitted or refused. `reserved_tokens` is of its sequences together."""

    object: Literal["decision"] = "decision"
    id: str
    tenant_id: str
    key_id: str
    adapter_id: str | None
    model: str
    outcome: Literal["admitted", "refused"]
    decided: Timestamp
    reserved_tokens: int
    checks: list[CheckView]

    @classmethod
    def of(cls, explanation: Explanation) -> Self:
        return cls(
            id=explanation.request_id,
            tenant_id=explanation.tenant_id,
            key_id=explanation.key_id,
            adapter_id=explanation.adapter_id,
            model=explanation.model,
            outcome="refused" if explanation.is_refused else "admitted",
            decided=datetime.fromtimestamp(explanation.now_ms / 1000, UTC),
            reserved_tokens=explanation.num_reserved_tokens,
            checks=[
                CheckView.of(limit, check, explanation.now_ms)
                for limit, check in explanation.checked
            ],
        )
