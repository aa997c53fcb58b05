"""Brings a model from the Hugging Face Hub into a folder, once: for containers that start.

Knows nothing of what serves it. Invariant: a folder whose mark names what is asked for is complete,
and the Hub is not asked again; so a restart needs no network.
"""

from __future__ import annotations

import json
from pathlib import Path

from app.launcher.errors import LauncherError
from app.launcher.model_source import SERVED_FILES

MARK = ".tenfold-fetched.json"
WEIGHTS = "*.safetensors"


def fetch_model(
    model: str, folder: Path, *, revision: str | None = None, with_weights: bool = True
) -> bool:
    """`model`, a Hub id, into `folder`; whether anything had to be fetched.

    Raises LauncherError.
    """
    wanted = {"model": model, "revision": revision, "with_weights": with_weights}
    mark = folder / MARK
    if _read(mark) == wanted:
        return False
    # NOTE: imported here because it is slow to load and a complete folder does not need it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    patterns = [name for name in SERVED_FILES if with_weights or name != WEIGHTS]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        snapshot_download(model, revision=revision, local_dir=folder, allow_patterns=patterns)
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise LauncherError(f"{model} could not be fetched from the Hub: {error}") from error
    if not (folder / "config.json").is_file():
        raise LauncherError(f"{model} has no config.json: it is no model that can be served")
    mark.write_text(json.dumps(wanted))
    return True


def _read(mark: Path) -> object:
    try:
        return json.loads(mark.read_text())
    except (OSError, ValueError):
        return None
