"""Erases an adapter's bytes everywhere: in engines, on their hosts, in the store.

Knows nothing of why. Invariants: the engines let go of it before the store does and again after,
so that a request that was leased in between cannot bring it back; an engine that lives and has not
said so keeps the version `deleting`, and the job comes back, but not for ever: after
`MAX_SILENT_TRIES` the bytes go without its word, and the record says so; what is noted as erased is
gone from the store, and from every engine that is noted with a number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.states import DELETED, change_state
from app.adapters.tables import Erasure
from app.adapters.versions_repository import VersionRepository
from app.ids import new_id
from lora.store import AdapterStore

log = structlog.get_logger()

MAX_SILENT_TRIES = 11  # half an hour and more, with the pauses between them


@dataclass(frozen=True, slots=True)
class LetGo:
    """What an engine said when it was told to let go of an adapter."""

    engine_id: str
    num_aborted: int


class EnginesSilentError(Exception):
    """Engines that live have not said that they let go; `said`: what others did."""

    def __init__(self, engine_ids: Sequence[str], said: Sequence[LetGo]) -> None:
        super().__init__(", ".join(engine_ids))
        self.engine_ids = tuple(engine_ids)
        self.said = tuple(said)


class Engines(Protocol):
    async def let_go(self, tenant_id: str, digest: str) -> Sequence[LetGo]:
        """Have every engine that lives end what runs on the adapter, and free its memory.

        Raises EnginesSilentError where one has not said in time that it has.
        """
        ...


class NoEngines:
    """Of a process without a queue: there is nobody to tell."""

    async def let_go(self, tenant_id: str, digest: str) -> Sequence[LetGo]:
        return []


NO_ENGINES = NoEngines()


async def erase(
    session: AsyncSession,
    store: AdapterStore,
    engines: Engines,
    tenant_id: str,
    locator: str,
    now: datetime,
    *,
    is_patient: bool = True,
) -> None:
    """No version needs the bytes at `locator`, which are locked. In the tenant's scope.

    Raises EnginesSilentError where `is_patient`.
    """
    digest = digest_of(locator)
    silent: set[str] = set()
    said = await _tell(engines, tenant_id, digest, silent, is_patient)
    await asyncio.to_thread(store.delete, locator)
    said += await _tell(engines, tenant_id, digest, silent, is_patient)
    version_ids = await finish_deletion(session, tenant_id, locator)
    aborted: dict[str, int | None] = {}
    for each in said:
        aborted[each.engine_id] = (aborted.get(each.engine_id) or 0) + each.num_aborted
    aborted |= dict.fromkeys(silent)
    session.add(
        Erasure(
            id=new_id("ers"),
            tenant_id=tenant_id,
            digest=digest,
            version_ids=version_ids,
            engines=[
                {"engine_id": engine_id, "num_aborted": num}
                for engine_id, num in sorted(aborted.items())
            ],
            erased_at=now,
        )
    )
    await session.flush()
    log.info("adapter_bytes_removed", tenant_id=tenant_id, locator=locator, engines=len(aborted))


async def end_what_runs(
    engines: Engines, tenant_id: str, locator: str, *, is_patient: bool = True
) -> None:
    """Have engines let go of what stays in the store for a while.

    Raises EnginesSilentError where `is_patient`.
    """
    await _tell(engines, tenant_id, digest_of(locator), set(), is_patient)


async def _tell(
    engines: Engines, tenant_id: str, digest: str, silent: set[str], is_patient: bool
) -> list[LetGo]:
    """What engines said; those that did not are added to `silent`."""
    try:
        return [*await engines.let_go(tenant_id, digest)]
    except EnginesSilentError as error:
        if is_patient:
            raise
        log.error("adapter_erased_without_word", digest=digest, engines=error.engine_ids)
        silent.update(error.engine_ids)
        return [*error.said]


async def finish_deletion(session: AsyncSession, tenant_id: str, locator: str) -> list[str]:
    """Nothing is left to do for the versions at `locator` that are being deleted; their ids."""
    versions = await VersionRepository(session, tenant_id).list_deleting(locator)
    for version in versions:
        change_state(version, DELETED)
    await session.flush()
    return [version.id for version in versions]


def digest_of(locator: str) -> str:
    """The digest that a locator (`lora.store.locator_of`) ends with."""
    return f"sha256:{locator.rpartition('/')[2]}"
