"""A conversation's prompt: through the template of the version that it runs on, or the base's.

Knows nothing of how templates are rendered. Invariant: the version that was pinned decides, for a
request and for its shadow each its own; an alias that moves changes nothing of a request that runs.
"""

from __future__ import annotations

from functools import partial

import msgspec

from app.adapters.resolver import ResolvedModel
from app.completions.schemas import ChatCompletionBody, CommonBody
from app.completions.service import prompter
from app.context import AppContext
from app.rollouts.shadowing import Reprompt
from app.rollouts.shadows import ShadowModel
from engine.messages import EngineRequest


async def conversation_prompt(
    context: AppContext, body: ChatCompletionBody, model: ResolvedModel | ShadowModel
) -> list[int]:
    """Raises BadRequestError (`chat_template_failed` where it is the version's template), or
    UnavailableError where that template cannot be had.
    """
    render = context.templates.render_of(model.adapter, model.template_sha256)
    return await prompter(context).chat(body, render)


def shadow_prompt(context: AppContext, body: CommonBody, model: ResolvedModel) -> Reprompt | None:
    """How the model's shadow gets its prompt, where its template is not the model's own.

    What it gives raises ApiError.
    """
    shadow = model.shadow
    if shadow is None or not isinstance(body, ChatCompletionBody):
        return None
    if shadow.template_sha256 == model.template_sha256:
        return None
    return partial(_reprompted, context, body, shadow)


async def _reprompted(
    context: AppContext, body: ChatCompletionBody, shadow: ShadowModel, request: EngineRequest
) -> EngineRequest:
    prompt = await conversation_prompt(context, body, shadow)
    max_tokens = prompter(context).room_for(prompt, None, request.sampling.max_tokens)
    sampling = msgspec.structs.replace(request.sampling, max_tokens=max_tokens)
    return msgspec.structs.replace(request, prompt_token_ids=prompt, sampling=sampling)
