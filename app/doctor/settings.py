"""What the doctor is told: the processes' own settings, as far as they are there.

The one file of this process that reads the environment. Invariant: whatever is missing is None, so
that the rest can still be looked at.
"""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.launcher.orphans import process_started_at
from app.settings import STORE_VARIABLES


class DoctorSettings(BaseSettings):
    """Variables as in `app.settings`; all of them are optional here."""

    model_config = SettingsConfigDict(
        env_prefix="TENFOLD_", frozen=True, extra="ignore", populate_by_name=True
    )

    database_url: str | None = None
    redis_url: str | None = None
    queue_secret: SecretStr | None = None
    key_pepper: SecretStr | None = None
    admin_key: SecretStr | None = None
    model: Path | None = None
    model_id: str | None = None
    adapter_store: str | None = Field(default=None, validation_alias=STORE_VARIABLES)
    data_dir: Path = Path(".tenfold")
    database_pool_size: int = Field(default=20, ge=1)
    max_usage_backlog: int = Field(default=200_000, ge=0)


def environment_of_local(data_dir: Path) -> dict[str, str]:
    """The variables of the API process that `tenfold demo` or `serve` runs in this folder.

    Empty where none runs there, or the system does not let us see them.
    """
    try:
        pid_text, started_at = (data_dir / "run" / "api.pid").read_text().split()
        if process_started_at(int(pid_text)) != started_at:
            return {}
        content = Path(f"/proc/{pid_text}/environ").read_bytes()
    except (OSError, ValueError):
        return {}
    pairs = (each.partition("=") for each in os.fsdecode(content).split("\0"))
    return {name: value for name, _, value in pairs if name.startswith("TENFOLD_")}
