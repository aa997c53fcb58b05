"""Residency, levers and erasures as the API shows and takes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, StringConstraints

from app.adapters.probing import Probed, Question
from app.adapters.residency import Pulled
from app.adapters.tables import Erasure
from app.bodies import Body, Storable, Timestamp
from app.completions.trial import TrialAnswer
from app.prompt_bodies import PromptOrMessages
from engine.messages import AdapterReport

PIN_S = 3600
MAX_PIN_S = 30 * 86_400
Replicas = Annotated[int, Field(ge=1, le=10_000)]
MAX_PROBE_TOKENS = 512
ProbeText = Annotated[str, StringConstraints(max_length=65_536), Storable]


class PreloadPost(Body):
    """`replicas`: on so many engines; null is all."""

    replicas: Replicas | None = None


class PinPost(Body):
    """`until`: in seconds since 1970, thirty days from now at most; by default an hour from now."""

    replicas: Replicas | None = None
    until: Annotated[int, Field(ge=0)] | None = None

    def ends_at(self, now_s: float) -> float:
        """When the pin ends, in seconds since 1970."""
        wanted = now_s + PIN_S if self.until is None else float(self.until)
        return min(wanted, now_s + MAX_PIN_S)


class ReplicaView(BaseModel):
    """What one engine says. `generation`: of its installations; each has new pages.

    `last_used`: when a request had it last, to a minute; null where none had it there.
    """

    engine_id: str
    state: str
    since: float
    bytes: int
    generation: int
    pinned_until: float | None
    last_used: float | None
    error: str | None

    @classmethod
    def of(cls, report: AdapterReport) -> Self:
        return cls(
            engine_id=report.engine_id,
            state=report.state.value,
            since=report.since_s,
            bytes=report.num_bytes,
            generation=report.generation,
            pinned_until=report.pinned_until_s,
            last_used=report.last_used_s,
            error=None if report.error is None else report.error.code,
        )


class ResidencyView(BaseModel):
    """Engines that have nothing of it are not in `data`. `num_engines`: that live."""

    object: Literal["adapter.residency"] = "adapter.residency"
    version_id: str
    digest: str
    num_engines: int
    data: list[ReplicaView]


class AnswerView(BaseModel):
    """What one engine said; `outcome` is null where it has not said anything yet."""

    engine_id: str
    outcome: str | None
    error: str | None


class CommandView(BaseModel):
    object: Literal["adapter.command"] = "adapter.command"
    lever: str
    version_id: str
    digest: str
    engines: list[AnswerView]

    @classmethod
    def of(cls, pulled: Pulled) -> Self:
        answers = []
        for engine_id in pulled.order.engine_ids:
            ack = pulled.said.get(engine_id)
            answers.append(
                AnswerView(
                    engine_id=engine_id,
                    outcome=None if ack is None else ack.outcome.value,
                    error=None if ack is None or ack.error is None else ack.error.code,
                )
            )
        return cls(
            lever=pulled.lever.value,
            version_id=pulled.version.id,
            digest=pulled.version.digest,
            engines=answers,
        )


class ProbeMessage(Body):
    role: Literal["system", "user", "assistant"]
    content: ProbeText


class ProbePost(PromptOrMessages):
    """Either `prompt` or `messages`. The answer is greedy."""

    prompt: Annotated[ProbeText, Field(min_length=1)] | None = None
    messages: Annotated[list[ProbeMessage], Field(min_length=1, max_length=64)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=MAX_PROBE_TOKENS)] = 64

    @property
    def question(self) -> Question:
        messages = None if self.messages is None else [each.model_dump() for each in self.messages]
        return Question(self.prompt, messages, self.max_tokens)


class ProbeView(BaseModel):
    """`text` is null where something is the matter with the version itself: `error` says what."""

    object: Literal["adapter.probe"] = "adapter.probe"
    version_id: str
    digest: str
    text: str | None
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    error: str | None

    @classmethod
    def of(cls, probed: Probed) -> Self:
        answer = probed.answer
        view = cls(
            version_id=probed.version.id,
            digest=probed.version.digest,
            text=None,
            finish_reason="error",
            prompt_tokens=probed.num_prompt_tokens,
            completion_tokens=0,
            error=None,
        )
        if not isinstance(answer, TrialAnswer):
            return view.model_copy(update={"error": answer.code})
        said = {
            "text": answer.text,
            "finish_reason": answer.finish_reason,
            "completion_tokens": answer.num_tokens,
        }
        return view.model_copy(update=said)


class ErasureView(BaseModel):
    """Bytes of which nothing is left. `engines`: what each said: `{engine_id, num_aborted}`.

    `num_aborted` null: it lived and said nothing, however often it was asked.
    """

    object: Literal["adapter.erasure"] = "adapter.erasure"
    id: str
    digest: str
    version_ids: list[str]
    engines: list[dict[str, Any]]
    erased: Timestamp

    @classmethod
    def of(cls, erasure: Erasure) -> Self:
        return cls(
            id=erasure.id,
            digest=erasure.digest,
            version_ids=erasure.version_ids,
            engines=erasure.engines,
            erased=erasure.erased_at,
        )
