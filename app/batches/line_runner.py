"""Runs one line as its request would run: the same limits, ledger and queue, at the tier `flex`.

Knows nothing of files or of who else runs what. Invariants: a line runs as its batch's key may run
it at that moment; its sequences have the same ids whenever it is run, and a later try has later
epochs, so that the ledger counts what came of the last one, once; what still runs of an earlier try
is taken back before a later one is enqueued.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import structlog
from pydantic import ValidationError

from app.adapters.resolver import ResolvedModel
from app.auth import Principal, verify_again
from app.batches.acceptance import LineAcceptance
from app.batches.answers import LineAnswer, answered, line_request_id, never_run, refused
from app.batches.lines import InputLine
from app.batches.patience import Patience
from app.batches.schemas import CHAT
from app.completions.conversation import conversation_prompt
from app.completions.draw import draw_of
from app.completions.endpoints import DEFAULT_TEXT_TOKENS
from app.completions.schemas import ChatCompletionBody, CommonBody, CompletionBody
from app.completions.service import Answer, collect, generate, pin_model, plan, prompter
from app.completions.service import Patience as ClientPatience
from app.completions.shapes import ChatShape, Shape, TextShape
from app.completions.unsupported import refuse_unsupported
from app.context import AppContext
from app.error_handlers import internal_error
from app.errors import ApiError, BadRequestError, PermissionDeniedError, UnauthorizedError
from app.ids import hex_of
from app.validation import request_error
from engine.messages import ServiceTier

log = structlog.get_logger()

# Sooner than a flex request yields no more: what has to wait longer waits here, in nobody's way.
QUEUE_TIMEOUT_S = 25.0
LONGEST_WAIT_S = 10.0
"""A line that has to wait longer is put off, and its batch with it."""
EPOCHS_A_TRY = 1000
TRIES_A_CLAIM = 50

Body = TypeVar("Body", ChatCompletionBody, CompletionBody)
TakeBack = Callable[[str], Awaitable[None]]


class PostponedError(Exception):
    """The line was not answered: it is to be run again, in `wait_s` or later."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(wait_s)
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class LineRunner:
    """Of one batch, in one worker's turn with it (`num_claims`).

    `context.acceptance` is `acceptance`. `take_back` aborts a sequence wherever it is; when
    `winding_up` is set, nothing is waited for any more.
    """

    context: AppContext
    acceptance: LineAcceptance
    take_back: TakeBack
    batch_id: str
    tenant_id: str
    key_id: str
    endpoint: str
    num_claims: int
    winding_up: asyncio.Event

    async def run(self, line: InputLine, patience: Patience) -> LineAnswer:
        """The line's answer. Raises PostponedError."""
        request_id = line_request_id(self.batch_id, line.number)
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                return await self._run(line, patience)
            finally:  # also where it is put off: who runs it next asks the registry
                self.acceptance.forget(hex_of(request_id))

    async def _run(self, line: InputLine, patience: Patience) -> LineAnswer:
        while True:
            try:
                return await self._try(line, patience)
            except UnauthorizedError as error:  # whoever asked for it may not any more
                return never_run(self.batch_id, line, error.code, error.message)
            except ApiError as error:
                wait_s = patience.wait_after(error, self.context.now())
                if wait_s is None:
                    return refused(self.batch_id, line, error)
                log.info("batch_line_waits", batch_id=self.batch_id, code=error.code, s=wait_s)
            except Exception:  # it must not take the other lines along
                log.exception("batch_line_crashed", batch_id=self.batch_id, line=line.number)
                return refused(self.batch_id, line, internal_error())
            await self._wait(wait_s)

    async def _wait(self, wait_s: float) -> None:
        if wait_s <= LONGEST_WAIT_S:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.winding_up.wait(), wait_s)
                wait_s = 0.0
        if wait_s > LONGEST_WAIT_S or self.winding_up.is_set():
            raise PostponedError(wait_s)

    async def _try(self, line: InputLine, patience: Patience) -> LineAnswer:
        principal = await verify_again(self.context, self.tenant_id, self.key_id)
        if "inference" not in principal.scopes:
            raise PermissionDeniedError("This API key lacks the scope 'inference'.")
        answer, shape = await self._plan(line, principal)
        request_ids = [request.request_id for request in answer.requests]
        is_repeated = await self._resume(answer, request_ids, patience)
        choices = await collect(answer, generate(self.context, answer, ClientPatience()))
        if is_repeated:
            self._say_how_it_ended(answer)
        return answered(self.batch_id, line, shape.whole(choices, answer.usage()), answer.usage())

    async def _resume(self, answer: Answer, request_ids: Sequence[str], patience: Patience) -> bool:
        """Make room for another try where there was one before; whether there was."""
        if self.num_claims == 1 and patience.num_tries == 0:
            return False
        if not await self.acceptance.recall(self.tenant_id, request_ids):
            return False
        if patience.num_tries == 0:  # somebody else's, who is gone
            patience.may_have_run = True
        if patience.may_have_run:
            tries = self.num_claims * TRIES_A_CLAIM + min(patience.num_tries, TRIES_A_CLAIM - 1)
            answer.requests[:] = [
                msgspec.structs.replace(each, epoch=tries * EPOCHS_A_TRY)
                for each in answer.requests
            ]
        for request_id in request_ids:
            await self.take_back(request_id)
        return True

    def _say_how_it_ended(self, answer: Answer) -> None:
        """An earlier try may be on record as failed: this one ended as its client is told."""
        for request, choice in zip(answer.requests, answer.choices, strict=True):
            # NOTE: of the same epoch as an engine's own word, and with no more tokens: the ledger
            # takes the reason from this record, and the counts from the engine's.
            ended = msgspec.structs.replace(
                request, epoch=request.epoch + 1, delivered_token_ids=[0] * choice.num_tokens
            )
            self.context.queue.disown(ended, choice.finish_reason or "")

    async def _plan(self, line: InputLine, principal: Principal) -> tuple[Answer, Shape]:
        """As the endpoint would. Raises ApiError."""
        request_id = line_request_id(self.batch_id, line.number)
        if self.endpoint == CHAT:
            chat = self._checked(ChatCompletionBody, line.body)
            model = await self._pinned(principal, chat, request_id)
            prompts = [await conversation_prompt(self.context, chat, model)]
            max_tokens = chat.max_completion_tokens or chat.max_tokens
            answer = self._planned(principal, model, chat, prompts, request_id, max_tokens, None)
            shape = ChatShape(answer.head, False, chat.metadata, answer.asked.tier.value)
            return answer, shape
        text = self._checked(CompletionBody, line.body)
        model = await self._pinned(principal, text, request_id)
        prompts = await prompter(self.context).texts(text.prompt)
        answer = self._planned(
            principal, model, text, prompts, request_id, text.max_tokens, DEFAULT_TEXT_TOKENS
        )
        return answer, TextShape(answer.head)

    async def _pinned(
        self, principal: Principal, body: CommonBody, request_id: str
    ) -> ResolvedModel:
        draw = draw_of(body, principal, request_id)
        return await pin_model(self.context, principal, body.model, draw)

    def _planned(
        self,
        principal: Principal,
        model: ResolvedModel,
        body: CommonBody,
        prompts: list[list[int]],
        request_id: str,
        max_tokens: int | None,
        default_max_tokens: int | None,
    ) -> Answer:
        return plan(
            self.context,
            principal,
            model,
            body,
            prompts,
            request_id=request_id,
            id_prefix="chatcmpl-" if self.endpoint == CHAT else "cmpl-",
            max_tokens=max_tokens,
            default_max_tokens=default_max_tokens,
        )

    def _checked(self, kind: type[Body], said: dict[str, Any]) -> Body:
        """The body, at the tier of batches. Raises BadRequestError."""
        try:
            body = kind.model_validate(said)
        except ValidationError as error:
            raise request_error(error) from error
        if body.stream:
            raise BadRequestError(
                "A line of a batch cannot be streamed.",
                code="unsupported_parameter",
                param="stream",
            )
        refuse_unsupported(body)
        timeout_s = min(QUEUE_TIMEOUT_S, self.context.settings.max_queue_timeout_s)
        return body.model_copy(
            update={"service_tier": ServiceTier.FLEX.value, "queue_timeout": timeout_s}
        )
