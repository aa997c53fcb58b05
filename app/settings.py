"""What the environment says: the one file of the API and worker processes that reads it.

Knows nothing of what is done with the values. Invariant: settings are frozen, and secrets never
show in a repr or a log line.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

MEBIBYTE = 1 << 20


class WorkerSettings(BaseSettings):
    """What `tenfold worker` needs: the registry, the store and the base model's folder."""

    model_config = SettingsConfigDict(env_prefix="TENFOLD_", frozen=True, extra="ignore")

    database_url: str
    model: Path
    model_id: str | None = None
    adapter_store: str


class Settings(WorkerSettings):
    """What `tenfold api` needs. Every field is `TENFOLD_<NAME>` in the environment.

    `database_url` is `postgresql+asyncpg://tenfold_app:...@host/db`: a role that is not a
    superuser. Without `admin_key` the admin API refuses everyone.
    """

    redis_url: str
    key_pepper: SecretStr = Field(min_length=16)
    admin_key: SecretStr | None = Field(default=None, min_length=16)
    host: str = "127.0.0.1"
    port: int = 8000
    admin_port: int = 8001
    data_dir: Path = Path(".tenfold")
    tenant_concurrency: int = Field(default=64, ge=1)
    # Below the concurrency, or it could never be reached: what waits is in flight as well.
    tenant_queue_depth: int = Field(default=32, ge=1)
    max_body_bytes: int = Field(default=4 * MEBIBYTE, ge=1024)
    max_upload_bytes: int = Field(default=256 * MEBIBYTE, ge=1024)
    database_pool_size: int = Field(default=20, ge=1)
    api_id: str = Field(default_factory=lambda: f"api-{secrets.token_hex(6)}")
