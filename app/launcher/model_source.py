"""A base model named by a folder or by a Hugging Face Hub id becomes a folder.

Knows nothing of what is in the folder: whether it can be served is the engine's and API's check.
"""

from __future__ import annotations

import re
from pathlib import Path

from app.launcher.errors import LauncherError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
SERVED_FILES = ["*.json", "*.safetensors", "*.jinja"]


def is_hub_id(model: str) -> bool:
    """Whether `model` can only mean a Hub id: of its form, and no such folder here."""
    return HUB_ID.fullmatch(model) is not None and not Path(model).exists()


def resolve_model(model: str) -> Path:
    """The folder of `model`, downloaded (or found in the Hub cache) for a Hub id.

    Raises LauncherError.
    """
    if not is_hub_id(model):
        folder = Path(model).expanduser().absolute()
        if not (folder / "config.json").is_file():
            raise LauncherError(f"{model} is neither a model folder (no config.json) nor a Hub id")
        return folder
    # NOTE: imported here because it is slow to load and only a Hub id needs it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, allow_patterns=SERVED_FILES))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise LauncherError(f"{model} could not be downloaded from the Hub: {error}") from error
