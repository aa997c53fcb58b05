"""`GET /admin/v1/explain/{request_id}`: why a request was admitted or refused, for operators."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from app.admission.explain import explain
from app.admission.schemas import DecisionView
from app.auth import require_operator
from app.context import Context
from app.session import RequestSession

router = APIRouter(prefix="/explain", dependencies=[Depends(require_operator)])


@router.get("/{request_id}")
async def get_decision(request_id: str, session: RequestSession, context: Context) -> DecisionView:
    return DecisionView.of(await explain(session, context.admission, request_id))
