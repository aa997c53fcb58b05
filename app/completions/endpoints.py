"""`POST /chat/completions` and `POST /completions`, under `/v1` and `/t/{tenant}/v1`.

Knows nothing of how tokens are made. Invariant: no connection to the registry is held while tokens
are awaited, and a client that hangs up ends its request at once, streamed or not.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from app.auth import Principal, require_inference
from app.completions.connection import while_connected
from app.completions.conversation import conversation_prompt, shadow_prompt
from app.completions.draw import draw_of
from app.completions.headers import response_headers
from app.completions.schemas import ChatCompletionBody, CommonBody, CompletionBody
from app.completions.service import Answer, Patience, collect, generate, pin_model, plan, prompter
from app.completions.shapes import ChatShape, Shape, TextShape
from app.completions.streaming import EventStreamResponse, frames
from app.completions.turnstile import TurnstileRoute
from app.completions.unsupported import refuse_unsupported
from app.context import AppContext, Context
from app.rollouts.observing import observed, observed_prompt

DEFAULT_TEXT_TOKENS = 16  # OpenAI's default for text completions

router = APIRouter(route_class=TurnstileRoute)

InferencePrincipal = Annotated[Principal, Depends(require_inference)]


@router.post("/chat/completions")
async def create_chat_completion(
    request: Request, body: ChatCompletionBody, principal: InferencePrincipal, context: Context
) -> Response:
    started_at = time.perf_counter()
    # 1. authenticate and 2. validate: done by the dependencies, but for what is not served.
    refuse_unsupported(body)
    # 3. authorise: the tenant has this model.
    draw = draw_of(body, principal, request.state.request_id)
    model = await pin_model(context, principal, body.model, draw)
    # 4. do
    prompt = await observed_prompt(context, model, conversation_prompt(context, body, model))
    answer = plan(
        context,
        principal,
        model,
        body,
        [prompt],
        request_id=request.state.request_id,
        id_prefix="chatcmpl-",
        max_tokens=body.max_completion_tokens or body.max_tokens,
        default_max_tokens=None,
    )
    # 5. answer
    tier = answer.asked.tier.value
    shape = ChatShape(answer.head, _includes_usage(body), body.metadata, tier)
    return await _respond(request, context, body, answer, shape, started_at)


@router.post("/completions")
async def create_completion(
    request: Request, body: CompletionBody, principal: InferencePrincipal, context: Context
) -> Response:
    started_at = time.perf_counter()
    # 1. authenticate and 2. validate: done by the dependencies, but for what is not served.
    refuse_unsupported(body)
    # 3. authorise: the tenant has this model.
    draw = draw_of(body, principal, request.state.request_id)
    model = await pin_model(context, principal, body.model, draw)
    # 4. do
    answer = plan(
        context,
        principal,
        model,
        body,
        await prompter(context).texts(body.prompt),
        request_id=request.state.request_id,
        id_prefix="cmpl-",
        max_tokens=body.max_tokens,
        default_max_tokens=DEFAULT_TEXT_TOKENS,
    )
    # 5. answer
    shape = TextShape(answer.head, _includes_usage(body))
    return await _respond(request, context, body, answer, shape, started_at)


async def _respond(
    request: Request,
    context: AppContext,
    body: CommonBody,
    answer: Answer,
    shape: Shape,
    started_at: float,
) -> Response:
    headers = partial(response_headers, answer, started_at)
    request.state.is_watched = True  # from here on its metrics are those of its answer
    generated = generate(context, answer, Patience())
    if answer.model.is_observed:
        reprompt = shadow_prompt(context, body, answer.model)
        generated = observed(context, answer, body.stop, generated, reprompt)
    if body.stream:
        stall_timeout_s = context.settings.client_stall_timeout_s
        return EventStreamResponse(
            frames(shape, answer, generated), headers, stall_timeout_s=stall_timeout_s
        )
    choices = await while_connected(request.receive, collect(answer, generated))
    content = msgspec.json.encode(shape.whole(choices, answer.usage()))
    return Response(content, media_type="application/json", headers=headers())


def _includes_usage(body: CommonBody) -> bool:
    return body.stream_options is not None and body.stream_options.include_usage is True
