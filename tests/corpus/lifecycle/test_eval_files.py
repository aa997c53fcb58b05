"""Golden prompts come with an adapter, are part of what it is, or are refused line by line."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import httpx
import pytest

from app.rollouts.golden_file import (
    MAX_BYTES,
    MAX_LINE_BYTES,
    GoldenFileError,
    problems_of,
    read_golden_file,
)
from app.rollouts.golden_schemas import MAX_PROMPTS
from lora.base_spec import BaseSpec
from lora.digest import FileDigest, adapter_digest
from lora.store import EVAL_FILE
from tests.builders.adapter_files import adapter_files
from tests.builders.operator import Operator, Tenant
from tests.builders.part_sender import PartSender
from tests.corpus.lifecycle.conftest import BOT

LINES: list[dict[str, Any]] = [
    {"prompt": "The capital of France?", "exact": "Paris"},
    {"messages": [{"role": "user", "content": "Order 4711"}], "regex": "4711", "max_tokens": 8},
    {"prompt": "As JSON:", "json_schema": {"type": "object", "required": ["city"]}},
]
GOOD = "\n".join(map(json.dumps, LINES)).encode()
BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "line 1: not JSON"),
    "blank line": (GOOD + b"\n\n" + GOOD, "line 4: not JSON"),
    "not JSON": (GOOD + b"\n{", "line 4: not JSON"),
    "one document": (json.dumps(LINES).encode(), "line 1: "),
    "not an object": (b"7", "line 1: "),
    "UTF-16": (GOOD.decode().encode("utf-16"), "line 1: not UTF-8"),
    "byte order mark": (b"\xef\xbb\xbf" + GOOD, "line 1: not JSON"),
    "field twice": (b'{"prompt": "a", "prompt": "b", "exact": "c"}', "line 1: a field"),
    "NaN": (b'{"prompt": "a", "json_schema": {"maximum": NaN}}', "line 1: NaN"),
    "huge integer": (b'{"prompt": "a", "exact": "b", "max_tokens": ' + b"1" * 99 + b"}", "integer"),
    "no expectation": (b'{"prompt": "a"}', "exactly one of exact"),
    "two expectations": (b'{"prompt": "a", "exact": "b", "regex": "c"}', "exactly one of exact"),
    "no prompt": (b'{"exact": "b"}', "exactly one of prompt"),
    "unknown field": (b'{"prompt": "a", "exact": "b", "model": "c"}', "model: "),
    "pattern that RE2 has not": (b'{"prompt": "a", "regex": "(?=b)"}', "line 1: "),
    "reference": (b'{"prompt": "a", "json_schema": {"$ref": "http://x/y"}}', "$ref"),
    "too many": (b"\n".join([GOOD.split(b"\n")[0]] * (MAX_PROMPTS + 1)), f"{MAX_PROMPTS} lines"),
    "long line": (b'{"prompt": "' + b"a" * MAX_LINE_BYTES + b'"}', "line 1: "),
    "too long": (b" " * (MAX_BYTES + 1), f"{MAX_BYTES} bytes"),
    "deep": (b'{"prompt": "a", "json_schema": ' + b"[" * 5000 + b"]" * 5000 + b"}", "line 1: "),
}


def with_eval(base: BaseSpec, content: bytes, seed: int = 1) -> dict[str, bytes]:
    return adapter_files(base, rank=1, seed=seed) | {EVAL_FILE: content}


@pytest.mark.parametrize("content", [GOOD, GOOD + b"\n", GOOD.replace(b"\n", b"\r\n")])
def test_each_line_is_a_prompt_that_a_rollout_takes(content: bytes) -> None:
    assert problems_of(content) == []
    assert [each.stored() for each in read_golden_file(content)] == [
        {"max_tokens": 128, **line} for line in LINES
    ]


@pytest.mark.parametrize("name", sorted(BAD))
def test_a_file_that_is_none_is_told_of_by_its_lines(name: str) -> None:
    content, said = BAD[name]
    problems = [str(each) for each in problems_of(content)]
    assert problems and said in problems[0]
    with pytest.raises(GoldenFileError):
        read_golden_file(content)


def test_every_line_that_is_none_is_told_of_and_no_word_of_it_is_shown() -> None:
    secret = "a word that nobody else is to read"
    lines = [{"prompt": secret}, LINES[0], {"prompt": "a", "exact": "b", "max_tokens": secret}]
    problems = problems_of("\n".join(map(json.dumps, lines)).encode())
    assert [each.line for each in problems] == [1, 3]
    assert not any(secret in str(each) for each in problems)


async def test_golden_prompts_are_part_of_the_digest_and_kept_with_the_version(
    operator: Operator, api: httpx.AsyncClient, acme: Tenant, tiny_base: BaseSpec
) -> None:
    files = with_eval(tiny_base, GOOD)
    version = await operator.push("acme", "bot", files)
    assert version["state"] == "active" and version["report"]["checks"] == []
    assert version["digest"] == adapter_digest(
        FileDigest(name, len(content), hashlib.sha256(content).hexdigest())
        for name, content in files.items()
    )
    path = f"/v1/adapters/bot/versions/v1/files/{EVAL_FILE}"
    assert (await api.get(path, headers=acme.headers)).content == GOOD
    plain = await operator.push("acme", "bot", adapter_files(tiny_base, rank=1, seed=1))
    assert (plain["version"], plain["digest"] == version["digest"]) == ("v2", False)


async def test_golden_prompts_that_are_none_are_refused_with_all_other_findings(
    operator: Operator, acme: Tenant, tiny_base: BaseSpec
) -> None:
    bad = with_eval(tiny_base, GOOD + b"\n{}") | {"adapter_config.json": b"[]"}
    response = await operator.upload("acme", "bot", bad)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (422, "config_schema_invalid")
    assert [check["rule"] for check in error["report"]["checks"]] == [
        "config_schema_invalid",
        "eval_invalid",
    ]
    response = await operator.upload("acme", "bot", with_eval(tiny_base, GOOD + b"\n{}"))
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (422, "eval_invalid")
    [check] = error["report"]["checks"]
    assert (check["file"], check["param"]) == (EVAL_FILE, "line 4") and check["hint"]
    response = await operator.upload("acme", "bot", with_eval(tiny_base, b" " * (MAX_BYTES + 1)))
    assert (response.status_code, response.json()["error"]["code"]) == (413, "file_too_large")
    assert (await operator.done("GET", f"{BOT}/versions"))["data"] == []


async def test_golden_prompts_come_in_parts_as_other_files_do(
    api: httpx.AsyncClient, acme: Tenant, tiny_base: BaseSpec
) -> None:
    sender = PartSender(api, acme.headers, "/v1/adapters/bot/uploads")
    files = with_eval(tiny_base, GOOD)
    upload = await sender.begin(files)
    await sender.send_all(upload, files)
    response = await sender.complete(upload)
    assert response.status_code == 202, response.text
    assert EVAL_FILE in [file["name"] for file in response.json()["files"]]
