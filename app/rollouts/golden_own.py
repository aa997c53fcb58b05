"""The golden prompts that a version brought with it, read from where its bytes are.

Knows nothing of how they are asked. Invariants: what is read is what was accepted, byte for byte;
no registry connection is held while it is read.
"""

from __future__ import annotations

import asyncio
import hashlib

from app.adapters.residency import find_at_tenant
from app.adapters.storage_errors import storage_errors
from app.context import AppContext
from app.errors import BadRequestError, UnavailableError
from app.rollouts.golden import GOLDEN
from app.rollouts.golden_file import GoldenFileError, read_golden_file
from app.rollouts.golden_schemas import GoldenPrompt
from app.rollouts.schemas import RolloutCreate
from app.tables import AdapterVersion
from lora.store import EVAL_FILE, AdapterMissingError, AdapterStore


async def with_own_prompts(
    context: AppContext, tenant_id: str, adapter: str, body: RolloutCreate
) -> RolloutCreate:
    """`body`; where it needs golden prompts and names none, with those that its version brought.

    Raises NotFoundError, or as `own_prompts`.
    """
    if body.golden or all(gate.metric != GOLDEN for gate in body.gates):
        return body
    async with context.database.session() as session:
        version = await find_at_tenant(session, tenant_id, adapter, body.to)
    prompts = await own_prompts(context.store, version, param="golden")
    return body.model_copy(update={"golden": prompts})


async def own_prompts(
    store: AdapterStore, version: AdapterVersion, *, param: str
) -> list[GoldenPrompt]:
    """Raises BadRequestError (`eval_missing`) where it brought none, about `param`;
    UnavailableError where they cannot be read now.
    """
    sha256 = next((file["sha256"] for file in version.files if file["name"] == EVAL_FILE), None)
    if sha256 is None:
        raise BadRequestError(
            f"v{version.number} brought no {EVAL_FILE}.", code="eval_missing", param=param
        )
    with storage_errors():
        return await asyncio.to_thread(_read, store, version.locator, sha256)


def _read(store: AdapterStore, locator: str, sha256: str) -> list[GoldenPrompt]:
    try:
        content = store.read(locator, EVAL_FILE)
    except AdapterMissingError as error:
        raise _unavailable("adapter_missing", locator) from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise _unavailable("adapter_corrupt", locator)
    try:
        return read_golden_file(content)
    except GoldenFileError as error:  # by other rules than when it came
        raise BadRequestError(f"{EVAL_FILE}: {error}", code="eval_invalid") from error


def _unavailable(code: str, locator: str) -> UnavailableError:
    return UnavailableError(
        "The adapter's stored bytes are gone or damaged.",
        code=code,
        internal=f"{EVAL_FILE} of {locator}",
    )
