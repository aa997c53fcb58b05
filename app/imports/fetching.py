"""Fetches an adapter's files from where they are published, pinned to one revision.

Knows nothing of jobs. Invariants: what the source means is found out once, at the beginning, and
that is what is fetched; no file grows beyond its limit on our disk; bytes are hashed on their way.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx
import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from app.imports.errors import ImportFailure, not_found, source_failed, too_large
from app.imports.guarded_http import GuardedClient
from app.imports.sources import Source
from app.sinks import new_file
from lora.digest import FileDigest
from lora.store import CHAT_TEMPLATE_FILE, CONFIG_FILE, WEIGHTS_FILE
from lora.store_open import open_objects

CHUNK_BYTES = 1 << 20
MAX_LISTING_BYTES = 8 << 20
_COMMIT = re.compile(r"[0-9a-f]{40}")
# How a source says that it has no such file: buckets that may not be listed say the second.
_ABSENT = frozenset({"import_source_not_found", "import_source_unauthorized"})

Progress = Callable[[int], None]
"""Told of bytes that came."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """`num_bytes`: where it is known before they come."""

    chunks: AsyncIterator[bytes]
    num_bytes: int | None


class Publisher(Protocol):
    """Of one source."""

    async def pin(self) -> str | None:
        """What the source means now; None where it cannot be held to anything."""
        ...

    def open(self, name: str, revision: str | None) -> AbstractAsyncContextManager[Incoming]:
        """A file of that revision. Raises ImportFailure `import_source_not_found` and others."""
        ...


class HubPublisher:
    """A repository of the Hugging Face Hub, or of a mirror that speaks as it does."""

    def __init__(
        self, client: GuardedClient, endpoint: str, source: Source, token: str | None
    ) -> None:
        self._client = client
        self._endpoint = endpoint.rstrip("/")
        self._repo = f"{source.host}/{source.path}"
        self._revision = source.revision or "main"
        self._token = token

    async def pin(self) -> str | None:
        revision = self._revision.replace("/", "%2F")
        url = f"{self._endpoint}/api/models/{self._repo}/revision/{revision}"
        async with self._client.get(url, token=self._token) as response:
            listing = await _read_all(response, MAX_LISTING_BYTES)
        try:
            commit = json.loads(listing)["sha"]
        except (ValueError, KeyError, TypeError) as error:
            raise source_failed("The Hub's answer names no commit.") from error
        if not isinstance(commit, str) or _COMMIT.fullmatch(commit) is None:
            raise source_failed("The Hub's answer names no commit.")
        return commit

    @asynccontextmanager
    async def open(self, name: str, revision: str | None) -> AsyncIterator[Incoming]:
        url = f"{self._endpoint}/{self._repo}/resolve/{revision}/{name}"
        async with _opened(self._client, url, self._token, name) as incoming:
            yield incoming


class FolderPublisher:
    """A folder of a web server. Nothing holds it to what it was: say the weights' SHA-256."""

    def __init__(self, client: GuardedClient, source: Source, token: str | None) -> None:
        self._client = client
        self._url = f"https://{source.host}:{source.port}/{source.path}"
        self._token = token

    async def pin(self) -> str | None:
        return None

    @asynccontextmanager
    async def open(self, name: str, revision: str | None) -> AsyncIterator[Incoming]:
        async with _opened(self._client, f"{self._url}/{name}", self._token, name) as incoming:
            yield incoming


class BucketPublisher:
    """A prefix in a bucket, read with the worker's own right: hence only where one is allowed."""

    def __init__(self, source: Source, options: Mapping[str, Any]) -> None:
        url = f"{source.scheme}://{source.host}/{source.path}"
        self._objects = open_objects(url, **options)

    async def pin(self) -> str | None:
        """The weights' entity tag."""
        with _bucket_errors(WEIGHTS_FILE):
            meta = await obstore.head_async(self._objects, WEIGHTS_FILE)
        return meta["e_tag"]

    @asynccontextmanager
    async def open(self, name: str, revision: str | None) -> AsyncIterator[Incoming]:
        with _bucket_errors(name):
            found = await obstore.get_async(self._objects, name)
            if name == WEIGHTS_FILE and found.meta["e_tag"] != revision:
                raise ImportFailure("import_source_changed", f"'{name}' was replaced meanwhile.")
            num_bytes = found.meta["size"]
            yield Incoming(_bucket_chunks(found), num_bytes)


async def fetch_files(
    publisher: Publisher,
    revision: str | None,
    folder: Path,
    max_bytes: Mapping[str, int],
    *,
    expect: Callable[[int], None],
    progress: Progress,
) -> dict[str, FileDigest]:
    """The files of an adapter, in `folder`. `expect` is told of lengths before the bytes come.

    The weights come last: a source without a configuration costs nothing. A chat template need not
    be there. Raises ImportFailure, OSError.
    """
    files = {}
    for name in (CONFIG_FILE, CHAT_TEMPLATE_FILE, WEIGHTS_FILE):
        try:
            async with publisher.open(name, revision) as incoming:
                if incoming.num_bytes is not None:
                    if incoming.num_bytes > max_bytes[name]:
                        raise too_large(name, max_bytes[name])
                    expect(incoming.num_bytes)
                files[name] = await _write(incoming, folder / name, max_bytes[name], progress)
        except ImportFailure as error:
            if name != CHAT_TEMPLATE_FILE or error.code not in _ABSENT:
                raise
    return files


async def _write(
    incoming: Incoming, target: Path, max_bytes: int, progress: Progress
) -> FileDigest:
    sha256 = hashlib.sha256()
    num_bytes = 0
    async with new_file(target) as sink:
        async for chunk in incoming.chunks:
            num_bytes += len(chunk)
            if num_bytes > max_bytes:
                raise too_large(target.name, max_bytes)

            def keep(chunk: bytes = chunk) -> None:
                sha256.update(chunk)
                sink.write(chunk)

            await asyncio.to_thread(keep)
            progress(len(chunk))
    if incoming.num_bytes not in (None, num_bytes):
        raise source_failed(f"'{target.name}' ends too early.")
    return FileDigest(target.name, num_bytes, sha256.hexdigest())


@asynccontextmanager
async def _opened(
    client: GuardedClient, url: str, token: str | None, name: str
) -> AsyncIterator[Incoming]:
    try:
        async with client.get(url, token=token) as response:
            yield Incoming(response.aiter_raw(CHUNK_BYTES), _length(response))
    except ImportFailure as error:
        if error.code == "import_source_not_found":
            raise not_found(name) from error
        raise


def _length(response: httpx.Response) -> int | None:
    declared = response.headers.get("content-length", "")
    return int(declared[:20]) if declared.isascii() and declared.isdigit() else None


async def _read_all(response: httpx.Response, max_bytes: int) -> bytes:
    content = bytearray()
    async for chunk in response.aiter_raw(CHUNK_BYTES):
        content += chunk
        if len(content) > max_bytes:
            raise source_failed("The source's answer is too long.")
    return bytes(content)


async def _bucket_chunks(found: obstore.GetResult) -> AsyncIterator[bytes]:
    async for chunk in found.stream(min_chunk_size=CHUNK_BYTES):
        yield bytes(chunk)


@contextmanager
def _bucket_errors(name: str) -> Iterator[None]:
    """What a bucket's client says, as a failure of the import."""
    try:
        yield
    except FileNotFoundError as error:
        raise not_found(name) from error
    except (PermissionDeniedError, UnauthenticatedError) as error:
        what = f"The bucket lets nobody read {name} with the worker's right."
        raise ImportFailure("import_source_unauthorized", what, is_temporary=True) from error
    except BaseError as error:
        raise source_failed(f"The bucket: {type(error).__name__}.") from error
