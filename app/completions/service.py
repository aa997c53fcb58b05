"""From a resolved model and its prompts to text: plan the sequences, run them, read them.

Knows nothing of HTTP or of OpenAI's objects. Invariant: choices are prompt-major (choice =
prompt x n + k), and each ends once; leases are released before the last text is handed out, so
that a client which has it all is never refused for what it already has.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from app.adapters.resolver import NamedModel, ResolvedModel, resolve
from app.adapters.weighted import Draw
from app.admission.messages import Decision
from app.auth import Principal
from app.completions.choice import Choice, Delta
from app.completions.connection import ClientTooSlowError
from app.completions.outputs import running
from app.completions.prompting import Prompter
from app.completions.responses import CompletionTokensDetails, Head, PromptTokensDetails, Usage
from app.completions.sampling import sampling_params
from app.completions.schemas import CommonBody
from app.completions.service_class import ServiceClass, service_class
from app.context import AppContext
from app.errors import BadRequestError
from app.ids import hex_of
from app.plans.limits import Kind
from engine.messages import EngineRequest, FinishReason
from engine.reasoning import ReasoningCount
from lora.base_spec import BaseSpec

FINGERPRINT_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client hears nothing: before the headers, and between signs of life after."""

    first_s: float = 2.0
    keepalive_s: float = 15.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer in the making: `choices[i]` is what `requests[i]` generates."""

    principal: Principal
    model: ResolvedModel
    asked: ServiceClass
    head: Head
    requests: list[EngineRequest]
    choices: list[Choice]
    num_choices_per_prompt: int
    decisions: list[Decision] = field(default_factory=list)
    """What admission said, once it has been asked."""

    @property
    def is_finished(self) -> bool:
        return all(choice.is_finished for choice in self.choices)

    def usage(self) -> Usage:
        """A prompt counts once, however many choices it has."""
        firsts = range(0, len(self.requests), self.num_choices_per_prompt)
        num_prompt = sum(len(self.requests[i].prompt_token_ids) for i in firsts)
        num_cached = sum(self.choices[i].num_cached_tokens for i in firsts)
        num_completion = sum(choice.num_tokens for choice in self.choices)
        num_reasoning = sum(choice.num_reasoning_tokens for choice in self.choices)
        return Usage(
            prompt_tokens=num_prompt,
            completion_tokens=num_completion,
            total_tokens=num_prompt + num_completion,
            prompt_tokens_details=PromptTokensDetails(num_cached),
            completion_tokens_details=CompletionTokensDetails(num_reasoning),
        )


async def pin_model(
    context: AppContext, principal: Principal, model: str, draw: Draw | None = None
) -> ResolvedModel:
    """What `model` means now and for `draw` (None: by chance), for the life of the request.

    No connection is kept for it.

    While the registry is away, what it named a moment ago.
    """

    async def look_up() -> NamedModel:
        async with context.database.session() as session:
            return await resolve(session, principal, model, context.base)

    # The key is part of the name: what one key may call, another may not.
    name = (principal.tenant_id, principal.key_id, model)
    found = await context.registry.look_up(name, look_up)
    assert found is not None, "what is not there is an error"
    return found.pick(draw or Draw(), model)


def prompter(context: AppContext) -> Prompter:
    return Prompter(context.tokenizer, context.base.vocab_size, context.base.max_model_len)


def plan(
    context: AppContext,
    principal: Principal,
    model: ResolvedModel,
    body: CommonBody,
    prompts: Sequence[list[int]],
    *,
    request_id: str,
    id_prefix: str,
    max_tokens: int | None,
    default_max_tokens: int | None,
) -> Answer:
    """One sequence per prompt and choice. Raises BadRequestError where a prompt does not fit.

    `request_id` is the HTTP request's; the answer's id is another spelling of it.
    """
    asked = service_class(body, principal, context.settings)
    num_choices = body.n or 1
    concurrency = principal.terms.smallest(Kind.CONCURRENCY)
    if concurrency is not None and len(prompts) * num_choices > max(concurrency, 1):
        raise BadRequestError(
            f"One request may ask for at most {concurrency} choices, over all its prompts; yours"
            f" asks for {len(prompts) * num_choices}.",
            param="n" if num_choices > 1 else "prompt",
        )
    room = prompter(context).room_for
    lengths = [room(prompt, max_tokens, default_max_tokens) for prompt in prompts]
    answer_id = hex_of(request_id)
    stop_token_ids = context.base.eos_token_ids
    requests = [
        EngineRequest(
            request_id=f"{answer_id}-{i * num_choices + k}",
            tenant_id=principal.tenant_id,
            api_id=context.settings.api_id,
            epoch=0,
            prompt_token_ids=prompt,
            sampling=sampling_params(
                body, choice=k, max_tokens=lengths[i], stop_token_ids=stop_token_ids
            ),
            adapter=model.adapter,
            weight=principal.weight,
            reserved_share=principal.terms.reserved_share,
            service_tier=asked.tier,
        )
        for i, prompt in enumerate(prompts)
        for k in range(num_choices)
    ]
    choices = [
        Choice(
            i,
            context.tokenizer.start_detokenizer(),
            body.stop,
            stop_token_ids,
            _reasoning_of(context.base, request),
        )
        for i, request in enumerate(requests)
    ]
    head = Head(
        id=f"{id_prefix}{answer_id}",
        created=int(time.time()),
        model=model.requested,
        system_fingerprint=system_fingerprint(context.base, model.digest),
    )
    return Answer(principal, model, asked, head, requests, choices, num_choices)


def _reasoning_of(base: BaseSpec, request: EngineRequest) -> ReasoningCount | None:
    tokens = base.reasoning_token_ids
    return None if tokens is None else ReasoningCount(tokens, request.prompt_token_ids)


async def generate(
    context: AppContext, answer: Answer, patience: Patience
) -> AsyncGenerator[list[Delta], None]:
    """Run the answer's sequences; what came at a time. An empty list: nothing came for a while.

    Raises ApiError when a sequence fails. Closing the generator aborts what still runs; throwing a
    ClientTooSlowError into it does so under that name.
    """
    timeout_s = patience.first_s
    async with running(
        context,
        answer.principal,
        answer.model,
        answer.requests,
        answer.num_choices_per_prompt,
        answer.asked,
    ) as outputs:
        answer.decisions.append(outputs.decision)
        while True:
            deltas = []
            for place, output in await outputs.next(timeout_s):
                deltas.append(answer.choices[place].take(output))
                if answer.choices[place].is_finished:  # maybe at a stop string, before its engine
                    outputs.close(place, FinishReason.STOP.value)
            if answer.is_finished:
                break
            try:
                yield deltas
            except ClientTooSlowError as error:
                outputs.close_all(error.code)
                raise
            timeout_s = patience.keepalive_s
    yield deltas


async def collect(answer: Answer, generated: AsyncGenerator[list[Delta], None]) -> list[Delta]:
    """Each choice's whole text. Raises ApiError when a sequence fails."""
    texts = [""] * len(answer.choices)
    async with aclosing(generated):
        async for deltas in generated:
            for delta in deltas:
                texts[delta.choice] += delta.text
    return [
        Delta(choice.index, text, choice.finish_reason)
        for choice, text in zip(answer.choices, texts, strict=True)
    ]


def system_fingerprint(base: BaseSpec, digest: str | None) -> str:
    """`fp_<base>` or `fp_<base>_<adapter>`: equal where the same weights answered."""
    parts = [base.fingerprint] if digest is None else [base.fingerprint, digest]
    digits = [part.removeprefix("sha256:")[:FINGERPRINT_DIGITS] for part in parts]
    return "_".join(["fp", *digits])
