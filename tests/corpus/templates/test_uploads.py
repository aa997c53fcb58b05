"""A template comes with an adapter on every way in, is part of what it is, or is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import httpx
import pytest

from app.context import AppContext
from lora.base_spec import BaseSpec
from lora.digest import FileDigest, adapter_digest
from lora.store import CHAT_TEMPLATE_FILE
from tests.builders.adapter_files import adapter_files
from tests.builders.chat_templates import GEMMA, HOARD, SMOLLM2, SPIN
from tests.builders.operator import Operator, Tenant
from tests.builders.part_sender import PartSender
from tests.corpus.templates.conftest import BOT, Files, Push

# (template, status, code, what the finding says)
REFUSED: list[tuple[str | bytes, int, str, str]] = [
    ("{% for %}", 422, "chat_template_invalid", "does not compile"),
    ("{{ raise_exception('never') }}", 422, "chat_template_invalid", "never"),
    ("{{ ''.__class__.__mro__ }}", 422, "chat_template_invalid", "unsafe"),
    ("{% include 'x' %}", 422, "chat_template_invalid", "small conversation"),
    (SPIN, 422, "chat_template_invalid", "more time"),
    (HOARD, 422, "chat_template_invalid", "more memory"),
    ("{{ messages[0].content * 9999 }}", 422, "chat_template_invalid", "more text"),
    (b"\xff\xfe{{ messages }}", 422, "chat_template_invalid", "UTF-8"),
    ("", 422, "chat_template_invalid", "no text"),
    (" " * (64 << 10) + " ", 413, "file_too_large", ""),
]


def digest_of(files: Files) -> str:
    return adapter_digest(
        FileDigest(name, len(content), hashlib.sha256(content).hexdigest())
        for name, content in files.items()
    )


async def test_a_template_is_part_of_the_digest_and_kept_with_the_version(
    operator: Operator,
    acme: Tenant,
    context: AppContext,
    push: Push,
    with_template: Callable[..., Files],
) -> None:
    plain, templated = await push(None), await push(SMOLLM2)
    assert templated["state"] == "active" and templated["report"]["checks"] == []
    assert templated["digest"] == digest_of(with_template(SMOLLM2))
    assert plain["digest"] == digest_of(with_template(None)) != templated["digest"]
    sha256 = hashlib.sha256(SMOLLM2.encode()).hexdigest()
    shown = {"name": CHAT_TEMPLATE_FILE, "bytes": len(SMOLLM2), "sha256": sha256}
    assert shown in templated["files"] and shown not in plain["files"]

    locator = f"{acme.id}/{templated['digest'].removeprefix('sha256:')}"
    kept = context.store.fetch(locator) / CHAT_TEMPLATE_FILE
    assert kept.read_bytes() == SMOLLM2.encode()
    files = {name: (name, content) for name, content in with_template(SMOLLM2).items()}
    dry = await operator.done("POST", f"{BOT}/validate", files=files)
    assert dry["digest"] == templated["digest"]


async def test_a_template_that_does_not_do_is_refused_with_its_reason(
    operator: Operator, acme: Tenant, with_template: Callable[..., Files]
) -> None:
    for template, status, code, said in REFUSED:
        response = await operator.upload("acme", "bot", with_template(template))
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (status, code), template[:50]
        if status == 422:
            [check] = error["report"]["checks"]
            assert (check["rule"], check["file"]) == (code, CHAT_TEMPLATE_FILE)
            assert said in check["message"] and check["hint"]
    assert (await operator.done("GET", f"{BOT}/versions"))["data"] == []


async def test_a_report_lists_the_templates_findings_with_all_others(
    operator: Operator, acme: Tenant, with_template: Callable[..., Files]
) -> None:
    files = with_template("{% for %}") | {"adapter_config.json": b"[]"}
    error = (await operator.upload("acme", "bot", files)).json()["error"]
    rules = [check["rule"] for check in error["report"]["checks"]]
    assert rules == ["config_schema_invalid", "chat_template_invalid"]
    assert error["code"] == "config_schema_invalid"


async def test_a_template_that_takes_no_system_message_is_accepted_with_a_warning(
    push: Push,
) -> None:
    version = await push(GEMMA)
    assert version["state"] == "active"
    [check] = version["report"]["checks"]
    assert (check["rule"], check["severity"]) == ("chat_template_without_system", "warning")
    assert "System role not supported" in check["message"]


async def test_other_jinja_files_are_still_refused(
    operator: Operator, acme: Tenant, with_template: Callable[..., Files]
) -> None:
    response = await operator.upload("acme", "bot", with_template(None) | {"other.jinja": b"x"})
    assert response.json()["error"]["code"] == "file_not_allowed"


@pytest.mark.parametrize("template", [SMOLLM2, "{% for %}"], ids=["good", "bad"])
async def test_a_template_comes_in_parts_as_other_files_do(
    operator: Operator,
    api: httpx.AsyncClient,
    acme: Tenant,
    with_template: Callable[..., Files],
    template: str,
) -> None:
    sender = PartSender(api, acme.headers, "/v1/adapters/bot/uploads")
    files = with_template(template)
    upload = await sender.begin(files)
    await sender.send_all(upload, files)
    response = await sender.complete(upload)
    if template != SMOLLM2:
        assert response.json()["error"]["code"] == "chat_template_invalid"
        return
    assert (response.status_code, response.json()["digest"]) == (202, digest_of(files))
    again = await sender.begin(with_template(template, 2))
    skipped = {file["path"]: file["skip_upload"] for file in again["files"]}
    assert skipped[CHAT_TEMPLATE_FILE] is True  # the tenant's own version has it


async def test_control_without_a_template_nothing_of_one_is_said(
    operator: Operator, acme: Tenant, tiny_base: BaseSpec
) -> None:
    version = await operator.push("acme", "bot", adapter_files(tiny_base))
    assert [file["name"] for file in version["files"]] != []
    assert CHAT_TEMPLATE_FILE not in [file["name"] for file in version["files"]]
