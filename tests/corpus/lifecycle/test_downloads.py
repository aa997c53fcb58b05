"""A version's files are had back byte for byte, by whoever may have them, or not at all."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from app.adapters.download_response import DownloadResponse
from app.adapters.downloading import (
    MAX_PER_TENANT,
    PIECE_BYTES,
    DownloadSlots,
    KeptFile,
    kept_files,
)
from app.adapters.states import NEEDS_BYTES, STATES
from app.context import AppContext
from app.errors import ConflictError, RateLimitedError, UnavailableError
from app.tables import AdapterVersion
from lora.base_spec import BaseSpec
from lora.digest import FileDigest, adapter_digest, hash_file
from lora.store import CONFIG_FILE, WEIGHTS_FILE, LocalAdapterStore
from tests.builders.adapter_files import adapter_files
from tests.builders.operator import OPERATOR, Operator, Tenant
from tests.builders.server import serving
from tests.corpus.lifecycle.conftest import BOT, Push, Version, code

V1 = f"{BOT}/versions/v1"
NUM_PIECES = 3


@pytest.fixture
async def version(push: Push) -> Version:
    return await push(1)


@pytest.fixture
def weights(context: AppContext, acme: Tenant, version: Version) -> Path:
    """The weights of `version` in the store."""
    locator = f"{acme.id}/{version['digest'].removeprefix('sha256:')}"
    return context.store.fetch(locator) / WEIGHTS_FILE


async def downloaded(
    client: httpx.AsyncClient, path: str, headers: Mapping[str, str]
) -> tuple[str, dict[str, bytes]]:
    """The digest of a version, and its files, by the URLs that its download names."""
    listing = await client.get(f"{path}/download", headers=headers)
    assert listing.status_code == 200, listing.text
    found = {}
    for file in listing.json()["files"]:
        answer = await client.get(file["url"], headers=headers)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-content-sha256"] == file["sha256"]
        assert int(answer.headers["content-length"]) == file["bytes"] == len(answer.content)
        found[file["path"]] = answer.content
    return listing.json()["digest"], found


def digest_of(files: Mapping[str, bytes]) -> str:
    return adapter_digest(
        FileDigest(name, len(content), hashlib.sha256(content).hexdigest())
        for name, content in files.items()
    )


async def test_a_download_gives_the_bytes_that_were_accepted_their_digest_and_the_report(
    api: httpx.AsyncClient,
    admin: httpx.AsyncClient,
    acme: Tenant,
    version: Version,
    tiny_base: BaseSpec,
) -> None:
    sent = adapter_files(tiny_base, rank=1, seed=1)
    for client, path, headers in (
        (api, "/v1/adapters/bot/versions/v1", acme.headers),
        (admin, f"/admin/v1{V1}", OPERATOR),
    ):
        digest, files = await downloaded(client, path, headers)
        assert files == sent
        assert digest == version["digest"] == digest_of(files)
        report = await client.get(f"{path}/report", headers=headers)
        assert report.json() == version["report"]


async def test_another_tenants_download_is_not_found_and_no_file_but_the_versions_is(
    operator: Operator, api: httpx.AsyncClient, acme: Tenant, version: Version
) -> None:
    globex = await operator.new_tenant("globex")
    for below in ("report", "download", f"files/{CONFIG_FILE}"):
        path = f"/v1/adapters/bot/versions/{version['id']}/{below}"
        foreign = await api.get(path, headers=globex.headers)
        unknown = await api.get(path.replace("/bot/", "/none/"), headers=globex.headers)
        assert (foreign.status_code, foreign.content) == (404, unknown.content)
        assert (await api.get(path, headers=acme.headers)).status_code == 200
    for name in ("index.json", "chat_template.jinja", "..%2Fx", "adapter_config.jso"):
        answer = await operator.call("GET", f"{V1}/files/{name}")
        assert answer.status_code == 404, name


async def test_an_archived_version_is_had_back_and_a_deleted_one_is_not(
    operator: Operator, versions: list[Version]
) -> None:
    second = f"{BOT}/versions/v2"
    for verb in ("deprecate", "archive"):
        await operator.done("POST", f"{second}/{verb}")
    assert (await operator.call("GET", f"{second}/download")).status_code == 200
    await operator.done("DELETE", second)
    for below in ("download", f"files/{WEIGHTS_FILE}"):
        answer = await operator.call("GET", f"{second}/{below}")
        assert code(answer) == (409, "version_erased")


@pytest.mark.parametrize("state", STATES)
def test_only_what_may_come_to_be_served_is_had_back(tmp_path: Path, state: str) -> None:
    files = [{"name": CONFIG_FILE, "num_bytes": 2, "sha256": "ab" * 32}]
    version = AdapterVersion(number=1, state=state, locator="x", files=files)
    store = LocalAdapterStore(tmp_path)
    if state in NEEDS_BYTES:
        assert [each.file.name for each in kept_files(store, version)] == [CONFIG_FILE]
        return
    with pytest.raises(ConflictError, match=f"v1 is {state}"):
        kept_files(store, version)


def put(path: Path, content: bytes | None) -> None:
    """What a disk does to a file; None: it loses it."""
    path.unlink() if content is None else path.write_bytes(content)


async def test_bytes_that_are_damaged_or_gone_are_never_a_downloads(
    operator: Operator, version: Version, weights: Path
) -> None:
    path = f"{V1}/files/{WEIGHTS_FILE}"
    sound = (await operator.call("GET", path)).content
    damaged = bytearray(sound)
    damaged[-1] ^= 1
    put(weights, bytes(damaged))
    assert code(await operator.call("GET", path)) == (503, "adapter_corrupt")
    put(weights, sound[:-1])
    assert code(await operator.call("GET", path)) == (503, "adapter_corrupt")
    put(weights, None)
    assert code(await operator.call("GET", path)) == (503, "adapter_missing")
    assert (await operator.call("GET", f"{V1}/download")).status_code == 200  # it names, no more
    put(weights, sound)
    assert (await operator.call("GET", path)).content == sound  # the control


@pytest.fixture
def large(tmp_path: Path) -> KeptFile:
    """One of several pieces."""
    folder = tmp_path / "large"
    folder.mkdir()
    (folder / CONFIG_FILE).write_text("{}")
    content = bytes(range(256)) * (NUM_PIECES * PIECE_BYTES // 256) + b"end"
    (folder / WEIGHTS_FILE).write_bytes(content)
    rows = [hash_file(folder / name) for name in (CONFIG_FILE, WEIGHTS_FILE)]
    store = LocalAdapterStore(tmp_path / "store")
    digest = adapter_digest(rows)
    locator = store.put("ten_acme", digest, {row.name: folder / row.name for row in rows})
    return KeptFile(store, locator, rows[1])


def damage(kept: KeptFile, place: int) -> None:
    """Turn one bit around."""
    path = kept.store.fetch(kept.locator) / kept.file.name
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("place", [0, PIECE_BYTES, -1])
async def test_the_last_piece_of_a_damaged_file_is_kept_back(large: KeptFile, place: int) -> None:
    damage(large, place)
    num_bytes = 0
    with pytest.raises(UnavailableError, match="adapter_corrupt"):
        async for piece in large.pieces():
            num_bytes += len(piece)
    assert num_bytes == NUM_PIECES * PIECE_BYTES  # all but the last three bytes


async def test_control_a_sound_file_of_several_pieces_comes_whole(large: KeptFile) -> None:
    pieces = [piece async for piece in large.pieces()]
    assert [len(piece) for piece in pieces] == [PIECE_BYTES] * NUM_PIECES + [3]
    assert hashlib.sha256(b"".join(pieces)).hexdigest() == large.file.sha256


def asgi(kept: KeptFile, closed: asyncio.Event, stall_timeout_s: float = 30.0) -> ASGIApp:
    """An application that answers with one file."""

    async def pieces() -> AsyncGenerator[bytes, None]:
        try:
            async for piece in kept.pieces():
                yield piece
        finally:
            closed.set()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = {"content-length": str(kept.file.num_bytes)}
        response = DownloadResponse(pieces(), headers, stall_timeout_s=stall_timeout_s)
        await response(scope, receive, send)

    return app


@pytest.mark.parametrize("is_damaged", [True, False])
async def test_no_client_takes_a_damaged_file_for_a_whole_one(
    large: KeptFile, is_damaged: bool
) -> None:
    if is_damaged:
        damage(large, PIECE_BYTES)
    closed = asyncio.Event()
    async with serving(asgi(large, closed)) as url, httpx.AsyncClient() as client:
        if is_damaged:
            with pytest.raises(httpx.TransportError):
                await client.get(url)
        else:
            assert len((await client.get(url)).content) == large.file.num_bytes  # the control
        await asyncio.wait_for(closed.wait(), timeout=10)


async def test_a_client_that_takes_nothing_is_cut_off_and_holds_nothing(large: KeptFile) -> None:
    closed = asyncio.Event()
    app = asgi(large, closed, stall_timeout_s=0.3)
    async with serving(app, send_buffer=4096) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nhost: tests\r\n\r\n")
        await asyncio.wait_for(closed.wait(), timeout=10)  # it has read nothing
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(large.file.num_bytes)
        writer.close()


def test_a_tenant_downloads_a_few_files_at_a_time_and_others_theirs() -> None:
    slots = DownloadSlots()
    held = [slots.hold("ten_acme") for _ in range(MAX_PER_TENANT)]
    for each in held:
        each.__enter__()
    with pytest.raises(RateLimitedError) as refusal, slots.hold("ten_acme"):
        pass
    assert (refusal.value.status, refusal.value.type) == (429, "concurrency")
    with slots.hold("ten_globex"):
        pass
    held[0].__exit__(None, None, None)
    with slots.hold("ten_acme"):
        pass
