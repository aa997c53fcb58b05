"""What travels between the API, the queue and an engine: msgpack structs with a closed schema.

Knows nothing of HTTP, SQL or torch. Invariant: every output names its request, the *epoch* under
which the request was leased, and the *index* of its first token, so that a reader can drop what
it already has, and whatever an engine that lost its lease still says.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

TRIAL_TENANT = "trial"
"""Whose requests try adapters: nobody is billed for them, and no ledger hears of them."""

API_LOST = "api_lost"
"""How a request ends whose API process died: said by its engine, or by the sweeper."""


class FinishReason(StrEnum):
    """Why a sequence ended. `stop` and `length` are OpenAI's; `abort` and `error` end a failed one.

    `hand_over` ends it at this engine only, which drains: another one goes on.
    """

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    HAND_OVER = "hand_over"


class ServiceTier(StrEnum):
    """How soon a request is to be served: `flex` yields to the others, `priority` may go first."""

    PRIORITY = "priority"
    DEFAULT = "default"
    FLEX = "flex"


class AdapterRef(msgspec.Struct, frozen=True, kw_only=True):
    """An immutable adapter version: who owns it, its digest, and where its bytes are.

    `digest` is `sha256:<64 hex>` (`lora.digest.adapter_digest`); `locator` is what
    `lora.store.AdapterStore` resolves. Identity is (tenant_id, digest), never a name.
    """

    tenant_id: str
    digest: str
    locator: str
    certificate: str = ""
    """What says that the digest was tried and found well: `engine.transport.certificates`."""
    is_on_trial: bool = False
    """It is loaded to be tried, and has no certificate yet."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are drawn. Draws are a function of (seed, position), so `seed` is always set.

    `temperature` 0 is greedy. `top_k` 0 and `top_p` 1 mean "off". `max_tokens` counts generated
    tokens. `stop_token_ids` end the sequence with `stop`; the id itself is delivered as the last
    token and never becomes text.
    """

    seed: int
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop_token_ids: tuple[int, ...] = ()


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence to run. `delivered_token_ids` is what the client already has (failover)."""

    request_id: str
    tenant_id: str
    api_id: str
    epoch: int
    prompt_token_ids: list[int]
    sampling: SamplingParams
    adapter: AdapterRef | None = None
    delivered_token_ids: list[int] = []
    num_reasoning_tokens: int = 0
    """Of the delivered ones."""
    queue_ms: int = 0
    """How long it waited in the queue; set when it is leased."""
    num_deaths: int = 0
    """Engines that died with it in flight; whoever leases it again counts."""
    weight: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """Of its tenant: with twice the weight goes twice the service."""
    reserved_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """Of all service, its tenant's at least while it has something that waits."""
    service_tier: ServiceTier = ServiceTier.DEFAULT
    traceparent: str | None = None
    """Of the span that it belongs to (W3C Trace Context); None where it is not traced."""
    wants_evidence: bool = False
    """It is there to try an adapter, or the base beside it: nobody is billed for it."""


class EngineError(msgspec.Struct, frozen=True, kw_only=True):
    """Why an engine could not serve a request: a stable code and a sentence for the client."""

    code: str
    message: str


class ModuleFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One adapted module, as it is served, beside a merge of its own into the base's weight.

    `error`: of its output, relative to what the adapter adds. `effect`: the norm of the weight's
    change over the norm of the weight.
    """

    module: str
    error: float
    effect: float


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What a request that wants evidence is told besides its token.

    `logits`: those of some ids that depend on the vocabulary's size alone. `modules`: of its
    adapter, a few; None where it was loaded before it was on trial, and nothing was measured.
    """

    logits: tuple[float, ...]
    modules: tuple[ModuleFigure, ...] | None = ()


class TokenOutput(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Tokens `index .. index+len-1` of one request's output; the last one carries the reason.

    Counts are absolute, so that a lost or repeated message does no harm: `num_generated_tokens`
    is everything generated up to and including this message.
    """

    request_id: str
    epoch: int
    index: int
    token_ids: list[int]
    num_prompt_tokens: int
    num_generated_tokens: int
    num_cached_tokens: int = 0
    num_reasoning_tokens: int = 0
    """Of the generated ones, those that the base's tokens for reasoning enclose."""
    adapter_load_ms: int = 0
    """How long it waited at this engine until its adapter was there."""
    finish_reason: FinishReason | None = None
    error: EngineError | None = None
    evidence: Evidence | None = None


class OutputBatch(msgspec.Struct, frozen=True, kw_only=True):
    """All outputs of one engine step for one API process: one stream entry."""

    engine_id: str
    outputs: list[TokenOutput]


class UsageAuthor(StrEnum):
    """Who says so. `app.requests.ledger` ranks them where they differ on how a request ended."""

    API = "api"
    ENGINE = "engine"
    SWEEPER = "sweeper"


class UsageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What one request has used so far, for the ledger. All counts are absolute.

    `finish_reason` is None for a checkpoint; else `stop`, `length`, `abort`, or an error's code.
    """

    author: UsageAuthor
    request_id: str
    tenant_id: str
    epoch: int
    num_prompt_tokens: int
    num_generated_tokens: int
    num_cached_tokens: int = 0
    num_reasoning_tokens: int = 0
    """Of the generated ones, as outputs say it."""
    adapter_digest: str | None = None
    finish_reason: str | None = None
    engine_id: str | None = None
    queue_ms: int | None = None
    adapter_load_ms: int | None = None


class Abort(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """The client is gone, or has all it wants: free the request's pages."""

    request_id: str
    epoch: int


class Wake(msgspec.Struct, frozen=True, tag="wake"):
    """There is work in the queue for an engine that said it was idle."""


class Lever(StrEnum):
    """What an engine is to do with an adapter, without or in spite of any request.

    `preload`: have it in the pool. `pin`: and keep it there. `evict`: free its pages, unless it is
    in use. `let_go`: end what runs on it, and keep nothing of it.
    """

    PRELOAD = "preload"
    PIN = "pin"
    EVICT = "evict"
    LET_GO = "let_go"


class AdapterCommand(msgspec.Struct, frozen=True, kw_only=True, tag="adapter"):
    """An operator's order to one engine, which answers with an AdapterAck under the same id.

    `until_s`: of a pin, in seconds since 1970.
    """

    command_id: str
    lever: Lever
    adapter: AdapterRef
    until_s: float = 0.0


class Outcome(StrEnum):
    """What came of a command. `busy`: requests hold the adapter. `gone`: nothing is left of it."""

    READY = "ready"
    PINNED = "pinned"
    EVICTED = "evicted"
    ABSENT = "absent"
    BUSY = "busy"
    GONE = "gone"
    FAILED = "failed"


class AdapterAck(msgspec.Struct, frozen=True, kw_only=True):
    """An engine's own word on a command. `num_aborted`: requests that it ended for it."""

    command_id: str
    engine_id: str
    outcome: Outcome
    num_aborted: int = 0
    error: EngineError | None = None


class ResidencyState(StrEnum):
    """Where an adapter is, as its engine sees it; of what is in no state an engine has nothing."""

    PENDING = "PENDING"
    LOADING = "LOADING"
    READY = "READY"
    FAILED = "FAILED"
    REMOVING = "REMOVING"


class AdapterReport(msgspec.Struct, frozen=True, kw_only=True):
    """An engine's own word on one adapter.

    `generation` counts the engine's installations: with each new one all of its pages are new.
    `since_s`: when it came into this state, in seconds since 1970.
    `last_used_s`: when a sequence had it last, to a minute; None where none has had it since it
    came here.
    """

    engine_id: str
    tenant_id: str
    digest: str
    state: ResidencyState
    since_s: float
    num_bytes: int = 0
    generation: int = 0
    pinned_until_s: float | None = None
    error: EngineError | None = None
    last_used_s: float | None = None


ControlMessage = Abort | Wake | AdapterCommand
