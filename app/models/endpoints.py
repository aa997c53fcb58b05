"""`GET /models` and `GET /models/{model}`, under `/v1` and `/t/{tenant}/v1`.

Knows nothing of SQL. Invariant: what is listed and what can be called come from one resolver, so
that a key sees exactly what it may use.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends

from app.adapters.resolver import ModelCard, get_model, list_models
from app.auth import Principal, require_inference
from app.context import AppContext, Context
from app.models.schemas import AdapterFacts, ModelList, ModelObject
from app.session import RequestSession

router = APIRouter()

InferencePrincipal = Annotated[Principal, Depends(require_inference)]


@router.get("/models")
async def get_models(
    principal: InferencePrincipal, context: Context, session: RequestSession
) -> ModelList:
    # 1. authenticate and 2. validate: done by the dependencies. 3. authorise, 4. do
    cards = await list_models(session, principal, context.base)
    # 5. answer
    data = [_to_object(card, context) for card in cards]
    return ModelList(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
    )


# A model id may hold `/`, `:` and `@`, and SDKs send them unescaped.
@router.get("/models/{model:path}")
async def get_one_model(
    model: str, principal: InferencePrincipal, context: Context, session: RequestSession
) -> ModelObject:
    # 1. authenticate and 2. validate: done by the dependencies. 3. authorise, 4. do
    card = await get_model(session, principal, model, context.base)
    # 5. answer
    return _to_object(card, context)


def _to_object(card: ModelCard, context: AppContext) -> ModelObject:
    facts = None
    if card.version is not None and card.digest is not None:
        facts = AdapterFacts(
            version=card.version,
            digest=card.digest,
            base=context.base.model_id,
            state=card.state,
        )
    return ModelObject(
        id=card.id,
        created=0 if card.created_at is None else int(card.created_at.timestamp()),
        owned_by=card.owned_by,
        shutdown_date=card.shutdown_on,
        x_adapter=facts,
    )
