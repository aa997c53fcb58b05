"""The secrets of one data folder, generated on its first start: `secrets.json`, mode 0600.

Knows nothing of what they protect. Invariant: the file appears whole or not at all, and the pepper
never changes: with another one every key that was handed out would be refused. Nor does the
envelope key: with another one no file could be read.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import msgspec

from app.launcher.errors import LauncherError


class FolderSecrets(msgspec.Struct, frozen=True, kw_only=True):
    """`key_pepper` keys the HMAC of API keys; `admin_key` is the operator's bootstrap key;
    `queue_secret` seals what processes say to each other, `envelope_key` tenants' files at rest.
    """

    key_pepper: str
    admin_key: str
    redis_password: str
    queue_secret: str = ""  # a folder of before it has none yet
    envelope_key: str = ""  # the same


def load_or_create_secrets(path: Path) -> tuple[FolderSecrets, bool]:
    """The folder's secrets, and whether this call generated them. Raises LauncherError."""
    if path.exists():
        try:
            found = msgspec.json.decode(path.read_bytes(), type=FolderSecrets)
        except msgspec.MsgspecError as error:
            raise LauncherError(f"{path} is damaged ({error}); restore it from a backup") from error
        missing = [name for name in ("queue_secret", "envelope_key") if not getattr(found, name)]
        if missing:
            fresh_ones = {name: secrets.token_urlsafe(32) for name in missing}
            found = msgspec.structs.replace(found, **fresh_ones)
            _write(path, found)
        return found, False
    fresh = FolderSecrets(
        key_pepper=secrets.token_urlsafe(32),
        admin_key=f"tfa_{secrets.token_urlsafe(32)}",
        redis_password=secrets.token_urlsafe(24),
        queue_secret=secrets.token_urlsafe(32),
        envelope_key=secrets.token_urlsafe(32),
    )
    _write(path, fresh)
    return fresh, True


def _write(path: Path, content: FolderSecrets) -> None:
    write_private(path, msgspec.json.format(msgspec.json.encode(content)))


def write_private(path: Path, content: bytes) -> None:
    """Replace the file in one step; only its owner can read it."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    scratch.rename(path)
