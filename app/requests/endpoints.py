"""`GET /admin/v1/requests/{request_id}`: what became of one request, for operators.

A completion's id is `chatcmpl-<hex>`; the request of its choice k is `<hex>-<k>`.
"""

from __future__ import annotations

from fastapi import APIRouter, Depends

from app.auth import require_operator
from app.requests import service
from app.requests.schemas import RequestView
from app.session import RequestSession

router = APIRouter(prefix="/requests", dependencies=[Depends(require_operator)])


@router.get("/{request_id}")
async def get_request(request_id: str, session: RequestSession) -> RequestView:
    return RequestView.of(*await service.show_request(session, request_id))
