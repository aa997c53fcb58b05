"""All that the doctor looks at, in the order in which things depend on each other.

Knows nothing of single checks. Invariant: one thing that is broken does not keep it from looking at
the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from pydantic import SecretStr

from app.doctor.findings import Finding, fail, ok, warn
from app.doctor.machine import look_at_machine
from app.doctor.model import look_at_model, look_at_store
from app.doctor.queue import look_at_queue
from app.doctor.registry import look_at_registry
from app.doctor.settings import DoctorSettings
from engine.transport.secret_list import secrets_of

MIN_SECRET_CHARS = 16


async def examine(settings: DoctorSettings) -> list[Finding]:
    """Look at everything; takes some seconds where something does not answer."""
    registry, queue, here = await asyncio.gather(
        look_at_registry(settings.database_url, settings.database_pool_size),
        look_at_queue(
            settings.redis_url, _shown(settings.queue_secret), settings.max_usage_backlog
        ),
        asyncio.to_thread(_look_here, settings),
    )
    return [*registry, *queue, *here, *_secrets(settings)]


def _look_here(settings: DoctorSettings) -> list[Finding]:
    return [
        *look_at_store(settings.adapter_store),
        *look_at_model(settings.model, settings.model_id),
        *look_at_machine(settings.data_dir),
    ]


def _secrets(settings: DoctorSettings) -> Iterable[Finding]:
    """Those that every API process needs; what they are is never shown."""
    pepper, admin = _shown(settings.key_pepper), _shown(settings.admin_key)
    if pepper is None or min(map(len, secrets_of(pepper))) < MIN_SECRET_CHARS:
        yield fail(
            "key-pepper",
            "TENFOLD_KEY_PEPPER is not set, or too short",
            f"at least {MIN_SECRET_CHARS} random characters, for good and for all API processes",
        )
    else:
        yield ok("key-pepper", "is set")
    if admin is None:
        yield warn(
            "admin-key",
            "TENFOLD_ADMIN_KEY is not set: the admin API refuses everyone",
            "set it for API processes",
        )
    elif len(admin) < MIN_SECRET_CHARS:
        yield fail("admin-key", "it is too short", f"at least {MIN_SECRET_CHARS} characters")
    else:
        yield ok("admin-key", "is set")


def _shown(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()
