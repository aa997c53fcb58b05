"""The golden prompts that a version brought with it, read from where its bytes are.

Knows nothing of rollouts. Invariant: what is read is what was accepted, byte for byte.
"""

from __future__ import annotations

import asyncio
import hashlib

from app.adapters.storage_errors import storage_errors
from app.errors import BadRequestError, UnavailableError
from app.rollouts.golden_file import GoldenFileError, read_golden_file
from app.rollouts.golden_schemas import GoldenPrompt
from app.tables import AdapterVersion
from lora.store import EVAL_FILE, AdapterMissingError, AdapterStore


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
