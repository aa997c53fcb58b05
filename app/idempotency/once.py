"""`Idempotency-Key`: what a request made is made once, and its answer given again for a day.

    @router.post("", status_code=201)
    async def create(body: ThingCreate, session: RequestSession, once: Once) -> ThingView:
        return await once.keep(ThingView.of(await service.create(session, body)))

Knows nothing of what is made. Invariants: the answer is kept in the transaction that makes the
thing, so that there are both or neither; an error keeps nothing, and the same request may be tried
again; an answer is given again to whoever got it, authenticated anew, and to nobody else. It may
hold a secret, so it is sealed (AES-256-GCM) under a key that needs the deployment's pepper *and*
the client's own `Idempotency-Key`, of which only a MAC is stored: a dump opens nothing.

An upload is asked for with `OnceReceived`: its body goes by, and what tells it from another one is
the digest of what was received.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Self, TypeVar

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from fastapi import Depends, Header, Request
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession

from app.context import AppContext, Context
from app.errors import ApiError, ConflictError, retry_after
from app.idempotency.answered import AnsweredBefore
from app.idempotency.repository import AnswerRepository, StoredAnswer
from app.session import RequestSession

KEPT = timedelta(hours=24)
MAX_KEY_CHARS = 255
_PURPOSE = b"tenfold.idempotency.v1"
_NONCE_BYTES = 12

IdempotencyKey = Annotated[str | None, Header(min_length=1, max_length=MAX_KEY_CHARS)]
View = TypeVar("View", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Idempotency:
    """Of one request. Without a key nothing is kept."""

    answers: AnswerRepository | None = None
    sealing_key: bytes = b""
    request_hash: str = ""
    status: int = 200
    expires_at: datetime | None = None

    async def keep(self, view: View) -> View:
        """Keep what is about to be answered; call it last, for its session is committed next."""
        if self.answers is not None:
            assert self.expires_at is not None
            shown = view.model_dump(mode="json")
            body = json.dumps(shown, ensure_ascii=False, separators=(",", ":")).encode()
            sealed = _seal(self.sealing_key, body)
            answer = StoredAnswer(self.request_hash, self.status, sealed)
            await self.answers.put(answer, self.expires_at)
        return view


async def get_once(
    request: Request,
    session: RequestSession,
    context: Context,
    idempotency_key: IdempotencyKey = None,
) -> Idempotency:
    """Raises AnsweredBefore, or ConflictError: `idempotency_mismatch` where the key came with
    another request, `idempotency_in_progress` while its first one has not ended."""
    if idempotency_key is None:
        return Idempotency()
    asked = Asked.of(request, context, idempotency_key)
    return await asked.enter(session, await request.body())


# NOTE: "function" because RequestSession is: it may not outlive what it is made from.
Once = Annotated[Idempotency, Depends(get_once, scope="function")]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request with a key, before it is known whether it was done."""

    key: str
    owner: str
    peppers: Sequence[str]
    line: tuple[bytes, ...]
    """Method, path and query."""
    status: int
    at: datetime

    @classmethod
    def of(cls, request: Request, context: AppContext, key: str) -> Self:
        return cls(
            key,
            request.state.actor,  # AttributeError, hence 500, where no policy ran
            context.settings.key_peppers,
            (request.method.encode(), request.url.path.encode(), request.url.query.encode()),
            getattr(request.scope["route"], "status_code", None) or 200,
            context.now(),
        )

    async def enter(self, session: AsyncSession, *body: bytes) -> Idempotency:
        """What the answer is to be kept with, in the transaction that makes it; as `get_once`."""
        request_hash = hashlib.sha256(_joined((*self.line, *body))).hexdigest()
        found: list[tuple[AnswerRepository, bytes]] = []
        for pepper in self.peppers:  # the first keeps, any of them finds
            found.append(await self._find(session, pepper, request_hash))
        answers, sealing_key = found[0]
        return Idempotency(answers, sealing_key, request_hash, self.status, self.at + KEPT)

    async def _find(
        self, session: AsyncSession, pepper: str, request_hash: str
    ) -> tuple[AnswerRepository, bytes]:
        key_hash, sealing_key = _derive(pepper, self.owner, self.key)
        answers = AnswerRepository(session, self.owner, key_hash)
        if not await answers.try_lock():
            raise ApiError(
                409,
                "idempotency_in_progress",
                "conflict",
                "A request with this Idempotency-Key has not ended yet.",
                headers=retry_after(1),
            )
        stored = await answers.find(self.at)
        if stored is not None:
            raise _answer_again(stored, sealing_key, request_hash)
        return answers, sealing_key


async def get_asked(
    request: Request,
    context: Context,
    idempotency_key: IdempotencyKey = None,
) -> Asked | None:
    """For a route whose body is too large to be kept: it enters with a digest of it."""
    return None if idempotency_key is None else Asked.of(request, context, idempotency_key)


OnceReceived = Annotated[Asked | None, Depends(get_asked)]


def _answer_again(stored: StoredAnswer, sealing_key: bytes, request_hash: str) -> Exception:
    if not hmac.compare_digest(stored.request_hash, request_hash):
        return ConflictError(
            "This Idempotency-Key came with another request before.",
            code="idempotency_mismatch",
            param="idempotency-key",
        )
    return AnsweredBefore(stored.status, _open(sealing_key, stored.sealed))


def _derive(pepper: str, owner: str, key: str) -> tuple[str, bytes]:
    """What the answer is found by, and what it is sealed with: neither leads to the other."""
    root = hmac.digest(pepper.encode(), _PURPOSE, "sha256")
    name = _joined((owner.encode(), key.encode()))
    return (
        hmac.digest(root, b"find" + name, "sha256").hex(),
        hmac.digest(root, b"seal" + name, "sha256"),
    )


def _joined(parts: Sequence[bytes]) -> bytes:
    return b"".join(b"%d:%b" % (len(part), part) for part in parts)


def _seal(key: bytes, body: bytes) -> bytes:
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, body, None)


def _open(key: bytes, sealed: bytes) -> bytes:
    return AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], None)
