"""Where an upload's files lie until they are kept or refused: a folder of its own.

Knows nothing of what the files are. Invariants: nothing here waits for a disk on the event loop;
the folder is gone when its upload is over, however that ends, and what a killed process left is
swept up.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from app.adapters.storage_errors import storage_errors
from lora.store import STALE_STAGING_S, remove_stale

STAGING_FOLDER = "uploads"


@asynccontextmanager
async def staging(data_dir: Path) -> AsyncIterator[Path]:
    """A folder of one upload's own, gone when it ends. Raises UnavailableError where none is to be
    had."""
    making = asyncio.create_task(asyncio.to_thread(_make, data_dir / STAGING_FOLDER))
    try:
        with storage_errors():
            folder = await asyncio.shield(making)
        yield folder
    finally:  # a thread that makes it goes on when its upload is cancelled
        await asyncio.shield(_remove(making))


def sweep_staging(data_dir: Path, now_s: float) -> None:
    """Remove what killed processes left behind; other processes' running uploads are younger."""
    remove_stale(data_dir / STAGING_FOLDER, now_s - STALE_STAGING_S)


def _make(parent: Path) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=parent))


async def _remove(making: asyncio.Task[Path]) -> None:
    await asyncio.wait((making,))
    if not making.cancelled() and making.exception() is None:
        await asyncio.to_thread(shutil.rmtree, making.result(), ignore_errors=True)
