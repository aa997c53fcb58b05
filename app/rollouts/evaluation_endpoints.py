"""Evaluations of versions over REST. Knows no rules and no SQL."""

from __future__ import annotations

from typing import Literal, Self

from fastapi import APIRouter
from pydantic import BaseModel

from app.adapters.tenancy import TenantId
from app.audit.trail import Trail
from app.context import Context
from app.rollouts.evaluating import Evaluated, evaluate

evaluation_router = APIRouter(prefix="/adapters/{adapter}/versions/{version}")


class EvaluationView(BaseModel):
    """Which of `num` golden prompts, from 0 on, each failed. `prod`: the version that it means."""

    object: Literal["adapter.evaluation"] = "adapter.evaluation"
    version_id: str
    digest: str
    num: int
    failed: list[int]
    failed_by_base: list[int]
    prod: str | None
    failed_by_prod: list[int] | None
    asked_at: int

    @classmethod
    def of(cls, evaluated: Evaluated) -> Self:
        found = evaluated.evaluation
        return cls(
            version_id=evaluated.version.id,
            digest=evaluated.version.digest,
            num=found.num,
            failed=found.failed,
            failed_by_base=found.failed_by_base,
            prod=found.prod,
            failed_by_prod=found.failed_by_prod,
            asked_at=int(found.asked_s),
        )


@evaluation_router.post("/evaluate")
async def evaluate_version(
    adapter: str, version: str, tenant_id: TenantId, context: Context, trail: Trail
) -> EvaluationView:
    """Asks the golden prompts of its `eval.jsonl`; what came of it is kept in its `report`."""
    return EvaluationView.of(await evaluate(context, tenant_id, adapter, version, trail))
