"""What decides which version of a weighted alias a request means. Knows nothing of aliases."""

from __future__ import annotations

from app.adapters.weighted import Draw
from app.auth import Principal
from app.completions.schemas import CommonBody


def draw_of(body: CommonBody, principal: Principal, request_id: str) -> Draw:
    """Every field that an alias may be sticky by, as this request has it."""
    return Draw(
        request_id,
        {
            "safety_identifier": body.safety_identifier,
            "user": body.user,
            "prompt_cache_key": body.prompt_cache_key,
            "api_key": principal.key_id,
        },
    )
