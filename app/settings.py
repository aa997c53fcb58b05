"""What the environment says: the one file of the API and worker processes that reads it.

Knows nothing of what is done with the values. Invariant: settings are frozen, and secrets never
show in a repr or a log line.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from pydantic import AliasChoices, Field, HttpUrl, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from engine.transport.secret_list import secrets_of

MEBIBYTE = 1 << 20
STORE_VARIABLES = AliasChoices("TENFOLD_ADAPTER_STORE_URL", "TENFOLD_ADAPTER_STORE")
MIN_PEPPER_CHARS = 16


class WorkerSettings(BaseSettings):
    """What `tenfold worker` needs: the registry, the queue, the store and the base's folder.

    `queue_secret` seals what goes through the queue; API, workers and engines have the same. Of
    several, with commas between, the first seals and any opens, so that it can be changed. So of
    several `key_pepper`s the first hashes API keys and seals the audit log, and any verifies.
    A worker's probes ask at `health_port`.
    `sweep_interval_s`: how often requests of dead API processes are looked for. `api_lost_after_s`:
    how long such a process must have been silent. `usage_export_url` takes what was used as batches
    of CloudEvents, `usage_export_token` goes with them as a bearer token.
    `max_override_bytes` is what an adapter's whole modules and trained tokens may hold together,
    where its tenant's plan does not say.
    `known_bases` names other base models, with commas between: an adapter that says that it was
    trained on one of them is refused.
    `file_store` is the folder of tenants' files and batches, `envelope_keys` what they are sealed
    with (as `queue_secret`, several may be given; of at least 32 characters each): without both
    there are neither. A file is kept for `file_retention_days` at most. A worker runs `max_batches`
    at a time, and of each `batch_concurrency` lines.
    A deleted version may be restored for `adapter_retention_days`, or until it is drained.
    `adapter_store` is a folder or a bucket's URL; copies of what lies in a bucket are kept in
    `adapter_cache` (default: in `data_dir`), up to `adapter_cache_bytes`.
    `import_allow`: where adapters may be imported from, comma-separated (`app.imports.sources`).
    `import_networks`: private ones that may be reached for it. `import_ca_file`: whom to trust
    there, instead of the system's authorities. `import_hub` is the Hugging Face Hub or its mirror.
    `import_credentials`: tokens that operators' imports may name: `name=token`, comma-separated.
    """

    model_config = SettingsConfigDict(
        env_prefix="TENFOLD_", frozen=True, extra="ignore", populate_by_name=True
    )

    database_url: str
    redis_url: str
    queue_secret: SecretStr = Field(min_length=16)
    key_pepper: SecretStr = Field(min_length=16)
    model: Path
    model_id: str | None = None
    adapter_store: str = Field(validation_alias=STORE_VARIABLES)
    adapter_cache: Path | None = None
    adapter_cache_bytes: int = Field(default=20 * 1024 * MEBIBYTE, ge=0)
    data_dir: Path = Path(".tenfold")
    max_upload_bytes: int = Field(default=256 * MEBIBYTE, ge=1024)
    import_allow: str = "hf://*"
    import_networks: str = ""
    import_ca_file: Path | None = None
    import_hub: str = "https://huggingface.co"
    import_timeout_s: float = Field(default=3600.0, gt=0)
    import_credentials: SecretStr | None = None
    golden_timeout_s: float = Field(default=3600.0, gt=0)
    usage_export_url: HttpUrl | None = None
    usage_export_token: SecretStr | None = None
    sweep_interval_s: float = Field(default=1.0, gt=0)
    api_lost_after_s: float = Field(default=5.0, gt=0)
    file_store: str | None = None
    envelope_keys: SecretStr | None = None
    file_retention_days: int = Field(default=30, ge=1)
    max_batches: int = Field(default=8, ge=1)
    batch_concurrency: int = Field(default=16, ge=1)
    max_override_bytes: int | None = Field(default=None, ge=0)
    adapter_retention_days: int = Field(default=0, ge=0, le=3650)
    known_bases: str = ""
    health_host: str = "127.0.0.1"
    health_port: int | None = Field(default=None, ge=1, le=65535)

    @property
    def adapter_copies(self) -> Path:
        """Where copies of what lies in a bucket are kept."""
        return self.adapter_cache or self.data_dir / "adapter-cache"

    @property
    def other_bases(self) -> frozenset[str]:
        """Of `known_bases`."""
        return frozenset(each.strip() for each in self.known_bases.split(",")) - {""}

    @property
    def import_tokens(self) -> dict[str, str]:
        """Of `import_credentials`, by name."""
        if self.import_credentials is None:
            return {}
        pairs = secrets_of(self.import_credentials.get_secret_value())
        return {name: token for name, _, token in (pair.partition("=") for pair in pairs)}

    @property
    def key_peppers(self) -> tuple[str, ...]:
        """Of `key_pepper`, in order."""
        return secrets_of(self.key_pepper.get_secret_value())

    @field_validator("import_credentials")
    @classmethod
    def _check_credentials(cls, credentials: SecretStr | None) -> SecretStr | None:
        pairs = () if credentials is None else secrets_of(credentials.get_secret_value())
        if not all(all(pair.partition("=")) for pair in pairs):
            raise ValueError("each credential is name=token")
        return credentials

    @field_validator("key_pepper")
    @classmethod
    def _check_peppers(cls, peppers: SecretStr) -> SecretStr:
        if min(map(len, secrets_of(peppers.get_secret_value()))) < MIN_PEPPER_CHARS:
            raise ValueError(f"each pepper has at least {MIN_PEPPER_CHARS} characters")
        return peppers


class Settings(WorkerSettings):
    """What `tenfold api` needs. Every field is `TENFOLD_<NAME>` in the environment.

    `database_url` is `postgresql+asyncpg://tenfold_app:...@host/db`: a role that is not a
    superuser. Without `admin_key` the admin API refuses everyone. `api_id` names one life of one
    process, and never another. `dependency_timeout_s` is what a request waits for Postgres or Redis
    before it is answered 503. So is every request while more than `max_usage_backlog` records wait
    in Redis for a worker: 60 MB of what is not yet in the ledger. A client that takes nothing of
    its stream for `client_stall_timeout_s` is cut off, and one whose body has not come after
    `body_timeout_s` (and as long as it takes at 8 KiB/s) is answered 408.
    `queue_timeout_s` is what a request waits for an engine where it does not say so itself, and
    `max_queue_timeout_s` what it may say. A request that could expect to wait for more than
    `max_queue_wait_s` (flex: than its own time-out) is answered 503 at once, and so is every one
    while `max_queued_requests` wait. While the process itself is more than `max_loop_lag_s` late,
    whoever has most requests open is refused more.
    On SIGTERM new connections are taken for `drain_delay_s` more, and what runs may go on for
    `drain_s`.
    `failover_timeout_s` is what a request whose engine died waits for another one.
    Of several peppers in `key_pepper`, with commas between, the first hashes API keys and any
    verifies them.
    `max_file_bytes` is what one file may hold, `max_tenant_file_bytes` all of a tenant's together.
    Uploads in parts are cut into `upload_part_bytes`.
    With `download_url_s` files in a bucket are downloaded from there, by URLs that are good for so
    long; with 0 through the API.
    `metrics_top_tenants`: how many tenants have metrics of their own. `otlp_endpoint`, which is
    OpenTelemetry's own variable, takes traces.
    """

    admin_key: SecretStr | None = Field(default=None, min_length=16)
    host: str = "127.0.0.1"
    port: int = 8000
    admin_port: int = 8001
    tenant_concurrency: int = Field(default=64, ge=1)
    # Below the concurrency, or it could never be reached: what waits is in flight as well.
    tenant_queue_depth: int = Field(default=32, ge=1)
    max_body_bytes: int = Field(default=4 * MEBIBYTE, ge=1024)
    upload_part_bytes: int = Field(default=16 * MEBIBYTE, ge=1024)
    download_url_s: int = Field(default=0, ge=0, le=86_400)
    max_file_bytes: int = Field(default=200 * MEBIBYTE, ge=1024)
    max_tenant_file_bytes: int = Field(default=10 * 1024 * MEBIBYTE, ge=1024)
    database_pool_size: int = Field(default=20, ge=1)
    dependency_timeout_s: float = Field(default=0.2, gt=0)
    client_stall_timeout_s: float = Field(default=30.0, gt=0)
    body_timeout_s: float = Field(default=30.0, gt=0)
    failover_timeout_s: float = Field(default=60.0, gt=0)
    drain_delay_s: float = Field(default=0.0, ge=0)
    drain_s: float = Field(default=30.0, ge=0)
    queue_timeout_s: float = Field(default=60.0, gt=0)
    max_queue_timeout_s: float = Field(default=600.0, gt=0)
    max_queue_wait_s: float = Field(default=10.0, gt=0)
    max_queued_requests: int = Field(default=10_000, ge=1)
    max_loop_lag_s: float = Field(default=0.25, gt=0)
    max_usage_backlog: int = Field(default=200_000, ge=0)
    metrics_top_tenants: int = Field(default=20, ge=0, le=1000)
    otlp_endpoint: str | None = Field(default=None, validation_alias="OTEL_EXPORTER_OTLP_ENDPOINT")
    api_id: str = Field(default_factory=lambda: f"api-{secrets.token_hex(6)}")
