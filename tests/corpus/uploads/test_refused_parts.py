"""Rows T1 to T14 of the specification: what is refused of an upload, by its exact code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.settings import Settings
from tests.builders.operator import Operator, Tenant
from tests.builders.part_sender import PartSender, declared

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
OCTETS = "application/octet-stream"


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


async def in_pieces(content: bytes, *, pause_s: float = 0) -> AsyncIterator[bytes]:
    for start in range(0, len(content), 100):
        yield content[start : start + 100]
        await asyncio.sleep(pause_s)


def staged(settings: Settings) -> list[Path]:
    return list((settings.data_dir / "uploads").glob("*"))


@pytest.fixture
async def upload(sender: PartSender, files: dict[str, bytes]) -> dict[str, Any]:
    return await sender.begin(files)


@pytest.fixture
def part(
    sender: PartSender, upload: dict[str, Any], files: dict[str, bytes]
) -> tuple[dict[str, Any], bytes]:
    """The first part of the weights."""
    return next(
        (part, content)
        for part, content in sender.parts(upload, files)
        if f"/{WEIGHTS}/" in part["url"]
    )


Part = tuple[dict[str, Any], bytes]


async def test_control_the_part_as_it_should_be_is_taken(sender: PartSender, part: Part) -> None:
    """A body in pieces, too, where its length is said."""
    view, content = part
    assert (await sender.put(view, content, content_type=OCTETS)).status_code == 200
    length = str(len(content))
    response = await sender.put(view, in_pieces(content), content_length=length)
    assert response.status_code == 200


async def test_t1_a_part_without_a_length(sender: PartSender, part: Part) -> None:
    response = await sender.put(part[0], in_pieces(part[1]))
    assert code(response) == (411, "length_required")


async def test_t2_a_part_longer_than_any_file_is_refused_unread(
    sender: PartSender, part: Part, settings: Settings
) -> None:
    async def body() -> AsyncIterator[bytes]:
        raise AssertionError("it was read")
        yield b""

    length = str(settings.max_upload_bytes + 1)
    response = await sender.put(part[0], body(), content_length=length)
    assert code(response) == (413, "file_too_large")


async def test_t2_a_file_that_is_declared_longer_than_any(
    sender: PartSender, files: dict[str, bytes], settings: Settings
) -> None:
    body = declared(files)
    body["files"][1]["bytes"] = settings.max_upload_bytes + 1
    response = await sender.call("POST", sender.path, json=body)
    assert code(response) == (413, "file_too_large")
    assert response.json()["error"]["param"] == WEIGHTS


@pytest.mark.parametrize("change", [-1, 1])
async def test_t3_a_part_of_another_length_than_was_declared(
    sender: PartSender, part: Part, change: int
) -> None:
    content = part[1] + b"x" if change > 0 else part[1][:-1]
    response = await sender.put(part[0], content)
    assert code(response) == (400, "length_mismatch")
    assert response.headers["connection"] == "close"


@pytest.mark.parametrize("change", [-1, 1])
async def test_t3_a_body_that_is_not_what_its_header_says(
    sender: PartSender, part: Part, settings: Settings, change: int
) -> None:
    content = part[1] + b"x" if change > 0 else part[1][:-1]
    response = await sender.put(part[0], in_pieces(content), content_length=str(len(part[1])))
    assert code(response) == (400, "length_mismatch")
    assert response.headers["connection"] == "close" and staged(settings) == []


@pytest.mark.parametrize("content_range", ["bytes 1-1500/9999", "bytes x", "items 0-1499/*"])
async def test_t3_a_range_that_is_not_the_parts(
    sender: PartSender, part: Part, content_range: str
) -> None:
    response = await sender.put(part[0], part[1], content_range=content_range)
    assert code(response) == (400, "length_mismatch")
    right = f"bytes 0-{len(part[1]) - 1}/*"
    assert (await sender.put(part[0], part[1], content_range=right)).status_code == 200


async def test_t5_a_part_that_was_damaged_on_its_way(
    sender: PartSender, part: Part, upload: dict[str, Any]
) -> None:
    response = await sender.put(part[0], part[1], x_content_sha256="0" * 64)
    assert code(response) == (422, "digest_mismatch")
    assert not any(file["received"] for file in (await sender.get(upload))["files"])


async def test_t6_a_client_that_trickles(sender: PartSender, part: Part) -> None:
    """Half a second is its patience here, and a second more for 16 KiB."""
    trickle = in_pieces(part[1], pause_s=0.2)
    response = await sender.put(part[0], trickle, content_length=str(len(part[1])))
    assert code(response) == (408, "upload_too_slow")


async def test_t7_a_body_that_would_have_to_be_unpacked(sender: PartSender, part: Part) -> None:
    response = await sender.put(part[0], part[1], content_encoding="gzip")
    assert code(response) == (415, "content_encoding_unsupported")


async def test_t8_a_form_in_the_place_of_the_bytes(sender: PartSender, part: Part) -> None:
    response = await sender.call("PUT", part[0]["url"], files={"file": part[1]})
    assert code(response) == (415, "multipart_unsupported")


@pytest.mark.parametrize(
    ("path", "status", "expected"),
    [
        ("tokenizer.json", 422, "file_not_allowed"),
        ("README.md", 422, "file_not_allowed"),
        ("../../etc/passwd", 422, "file_not_allowed"),
        ("training_args.bin", 415, "pickle_not_allowed"),
        ("adapter.tar.gz", 415, "archive_not_supported"),
        ("adapter_model-00001-of-00002.safetensors", 422, "sharded_adapter_unsupported"),
    ],
)
async def test_t10_other_files(
    sender: PartSender, files: dict[str, bytes], path: str, status: int, expected: str
) -> None:
    response = await sender.call("POST", sender.path, json=declared({**files, path: b"x"}))
    assert code(response) == (status, expected)


@pytest.mark.parametrize(
    ("name", "expected"), [(CONFIG, "config_missing"), (WEIGHTS, "adapter_empty")]
)
async def test_t10_a_file_that_is_not_there(
    sender: PartSender, files: dict[str, bytes], name: str, expected: str
) -> None:
    rest = {key: value for key, value in files.items() if key != name}
    response = await sender.call("POST", sender.path, json=declared(rest))
    assert code(response) == (422, expected)


async def test_a_file_that_is_declared_twice(sender: PartSender, files: dict[str, bytes]) -> None:
    body = declared(files)
    body["files"].append(body["files"][0])
    assert code(await sender.call("POST", sender.path, json=body)) == (400, "invalid_value")


async def test_t11_completing_before_all_is_there_and_sending_after(
    sender: PartSender, upload: dict[str, Any], part: Part, files: dict[str, bytes]
) -> None:
    assert code(await sender.complete(upload)) == (409, "upload_incomplete")
    await sender.send_all(upload, files)
    assert (await sender.complete(upload)).status_code == 202
    assert code(await sender.put(*part)) == (409, "upload_already_completed")
    assert code(await sender.cancel(upload)) == (409, "upload_already_completed")


@pytest.mark.parametrize(
    ("limits", "quota"),
    [
        ({"adapter_bytes": 5_000}, "adapter_bytes"),
        ({"uploads_per_day": 0}, "uploads_per_day"),
        ({"open_uploads": 0}, "open_uploads"),
    ],
)
async def test_t12_more_than_the_tenant_may_have(
    sender: PartSender,
    operator: Operator,
    files: dict[str, bytes],
    limits: dict[str, int],
    quota: str,
) -> None:
    await operator.done("PUT", "/tenants/acme/limits", json={"limits": limits})
    response = await sender.call("POST", sender.path, json=declared(files))
    assert code(response) == (403, "quota_exceeded")
    assert response.json()["error"]["quota"]["name"] == quota
    assert response.json()["error"]["quota"]["source"] == "tenant"


async def test_t13_another_tenants_upload_is_answered_as_nobodys(
    sender: PartSender,
    upload: dict[str, Any],
    part: Part,
    files: dict[str, bytes],
    globex: Tenant,
) -> None:
    theirs = PartSender(sender.client, globex.headers, sender.path)
    absent = f"upl_{'0' * 26}"
    for method, rest in [
        ("GET", ""),
        ("POST", "/complete"),
        ("POST", "/cancel"),
        ("PUT", f"/files/{WEIGHTS}/parts/1"),
    ]:
        foreign, nobodys = [
            await theirs.call(method, f"{sender.path}/{name}{rest}", content=part[1])
            for name in (upload["id"], absent)
        ]
        assert code(foreign) == code(nobodys) == (404, "not_found")
        assert foreign.content == nobodys.content
    assert (await sender.get(upload))["state"] == "uploading"


@pytest.mark.parametrize("rest", ["/files/other/parts/1", f"/files/{WEIGHTS}/parts/999"])
async def test_what_is_no_part_of_the_upload(
    sender: PartSender, upload: dict[str, Any], rest: str
) -> None:
    response = await sender.call("PUT", f"{sender.path}/{upload['id']}{rest}", content=b"x")
    assert code(response) == (404, "not_found")


@pytest.mark.parametrize("number", ["0", "-1", "one", str(10**9)])
async def test_what_is_no_number(sender: PartSender, upload: dict[str, Any], number: str) -> None:
    path = f"{sender.path}/{upload['id']}/files/{WEIGHTS}/parts/{number}"
    assert (await sender.call("PUT", path, content=b"x")).status_code == 400


async def test_a_part_over_the_limit_of_other_bodies_is_taken(
    sender: PartSender, settings: Settings, operator: Operator
) -> None:
    """Parts have their own limit: 16 MiB are more than a request's body may have elsewhere."""
    assert settings.max_body_bytes > 1024
    too_long = b"x" * (settings.max_body_bytes + 1)
    upload = await sender.begin({CONFIG: b"{}", WEIGHTS: b"x"})
    part = upload["files"][1]["parts"][0]
    response = await sender.put(part, too_long)
    assert code(response) == (400, "length_mismatch")  # and not 413 `request_too_large`
