"""An adapter's way in: refused with every reason, or accepted, verified and served."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from safetensors.numpy import save

from app.adapters.staging import sweep_staging
from app.context import AppContext
from app.settings import Settings
from lora.base_spec import BaseSpec
from lora.digest import FileDigest, adapter_digest
from tests.builders.adapter_files import adapter_config, adapter_files, adapter_tensors
from tests.builders.operator import OPERATOR, Operator

UPLOAD = "/tenants/acme/adapters/bot/versions"
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


@pytest.fixture(autouse=True)
async def acme_with_a_bot(operator: Operator) -> None:
    await operator.new_tenant("acme")
    await operator.new_adapter("acme", "bot")


def stored_folders(settings: Settings) -> list[Path]:
    root = Path(settings.adapter_store)
    return [path for path in root.glob("ten_*/*") if path.is_dir()]


def staged(settings: Settings) -> list[Path]:
    return list((settings.data_dir / "uploads").glob("*"))


async def test_accepted_upload_is_verifying_then_active_and_takes_prod(
    operator: Operator, tiny_base: BaseSpec, settings: Settings
) -> None:
    files = adapter_files(tiny_base)
    response = await operator.upload("acme", "bot", files)

    assert response.status_code == 201
    version = response.json()
    assert (version["version"], version["state"]) == ("v1", "verifying")
    assert version["manifest"]["max_rank"] == 4
    assert version["bytes"] == sum(map(len, files.values()))

    await operator.run_jobs()

    version = await operator.done("GET", f"{UPLOAD}/v1")
    assert version["state"] == version["report"]["status"] == "active"
    adapter = await operator.done("GET", "/tenants/acme/adapters/bot")
    assert adapter["aliases"] == {"prod": "v1"}
    assert len(stored_folders(settings)) == 1 and staged(settings) == []


async def test_digest_is_over_the_bytes_that_were_sent(
    operator: Operator, tiny_base: BaseSpec, tmp_path: Path
) -> None:
    files = adapter_files(tiny_base)
    version = (await operator.upload("acme", "bot", files)).json()

    sent = [FileDigest(file["name"], file["bytes"], file["sha256"]) for file in version["files"]]
    assert version["digest"] == adapter_digest(sent)
    assert {file.name: file.num_bytes for file in sent} == {k: len(v) for k, v in files.items()}


async def test_later_versions_never_move_prod(operator: Operator, tiny_base: BaseSpec) -> None:
    for seed in (1, 2):
        version = await operator.push("acme", "bot", adapter_files(tiny_base, seed=seed))
        assert version["state"] == "active"

    adapter = await operator.done("GET", "/tenants/acme/adapters/bot")
    assert adapter["aliases"] == {"prod": "v1"}


async def test_same_bytes_again_are_the_same_version(
    operator: Operator, tiny_base: BaseSpec
) -> None:
    first = await operator.push("acme", "bot", adapter_files(tiny_base))
    again = (await operator.upload("acme", "bot", adapter_files(tiny_base))).json()

    assert (again["id"], again["version"], again["state"]) == (first["id"], "v1", "active")


async def test_wait_answers_when_the_check_is_done_or_the_time_is_up(
    operator: Operator, tiny_base: BaseSpec
) -> None:
    files = {name: (name, data) for name, data in adapter_files(tiny_base).items()}
    response = await operator.call("POST", UPLOAD, files=files, params={"wait": 0.2})
    assert response.json()["state"] == "verifying"

    await operator.run_jobs()
    version = await operator.done("GET", f"{UPLOAD}/v1", params={"wait": 60})
    assert version["state"] == "active"


async def test_refusal_lists_every_finding_and_stores_nothing(
    operator: Operator, tiny_base: BaseSpec, settings: Settings
) -> None:
    files = adapter_files(tiny_base) | {
        CONFIG: adapter_config(use_qalora=True, task_type="SEQ_CLS")
    }
    response = await operator.upload("acme", "bot", files)

    error = response.json()["error"]
    assert response.status_code == 422
    assert response.headers["x-should-retry"] == "false"
    rules = [check["rule"] for check in error["report"]["checks"]]
    assert error["code"] == "task_type_unsupported"
    assert {"task_type_unsupported", "variant_unsupported"} <= set(rules)
    assert error["report"]["status"] == "rejected"
    assert stored_folders(settings) == [] and staged(settings) == []
    assert (await operator.done("GET", UPLOAD))["data"] == []


async def test_values_that_are_not_finite_are_rejected_by_the_worker(
    operator: Operator, tiny_base: BaseSpec, settings: Settings
) -> None:
    tensors = adapter_tensors(tiny_base)
    next(iter(tensors.values()))[0, 0] = np.nan
    version = await operator.push("acme", "bot", {CONFIG: adapter_config(), WEIGHTS: save(tensors)})

    assert version["state"] == "rejected"
    assert [check["rule"] for check in version["report"]["checks"]] == ["tensor_nonfinite"]
    assert (await operator.done("GET", "/tenants/acme/adapters/bot"))["aliases"] == {}
    assert stored_folders(settings) == []


async def test_untrained_adapter_is_accepted_with_a_warning(
    operator: Operator, tiny_base: BaseSpec
) -> None:
    tensors = adapter_tensors(tiny_base)
    zeroed = {name: data * 0 if "lora_B" in name else data for name, data in tensors.items()}
    version = await operator.push("acme", "bot", {CONFIG: adapter_config(), WEIGHTS: save(zeroed)})

    assert version["state"] == "active"
    assert [check["rule"] for check in version["report"]["checks"]] == ["no_effect"]


@pytest.mark.parametrize(
    ("name", "content", "status", "code"),
    [
        ("README.md", b"# hello", 422, "file_not_allowed"),
        ("tokenizer.json", b"{}", 422, "file_not_allowed"),
        ("../../etc/passwd", b"root", 422, "file_not_allowed"),
        ("adapter_model.bin", b"PK\x03\x04archive/data.pkl", 415, "pickle_not_allowed"),
        ("optimizer.pt", b"", 415, "pickle_not_allowed"),
        ("notes.txt", b"\x80\x02}q\x00.", 415, "pickle_not_allowed"),
        ("adapter.tar.gz", b"\x1f\x8b\x08", 415, "archive_not_supported"),
        ("adapter.zip", b"PK\x03\x04", 415, "archive_not_supported"),
        ("adapters.npz", b"", 415, "format_unsupported"),
        ("adapter.gguf", b"GGUF", 415, "format_gguf_unsupported"),
        (
            "adapter_model-00001-of-00002.safetensors",
            b"",
            422,
            "sharded_adapter_unsupported",
        ),
    ],
)
async def test_other_files_are_refused_by_a_name_for_what_they_are(
    operator: Operator,
    tiny_base: BaseSpec,
    settings: Settings,
    name: str,
    content: bytes,
    status: int,
    code: str,
) -> None:
    files = adapter_files(tiny_base) | {name: content}
    response = await operator.upload("acme", "bot", files)

    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert stored_folders(settings) == [] and staged(settings) == []


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (b"", 400, "safetensors_truncated"),
        (b"PK\x03\x04archive/data.pkl", 415, "pickle_not_allowed"),
        (b"\x80\x02}q\x00.", 415, "pickle_not_allowed"),
        (b"\xff" * 8 + b"{}", 400, "safetensors_header_length"),
        (b"\x02" + b"\0" * 7 + b"{}", 422, "adapter_empty"),
    ],
)
async def test_weights_that_are_no_adapter_are_refused(
    operator: Operator, content: bytes, status: int, code: str
) -> None:
    response = await operator.upload("acme", "bot", {CONFIG: adapter_config(), WEIGHTS: content})
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)


async def test_a_missing_file_is_named(operator: Operator, tiny_base: BaseSpec) -> None:
    files = adapter_files(tiny_base)
    for name, code in ((CONFIG, "config_missing"), (WEIGHTS, "adapter_empty")):
        rest = {key: value for key, value in files.items() if key != name}
        response = await operator.upload("acme", "bot", rest)
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (422, code, name)


async def test_file_over_the_limit_gets_413(
    operator: Operator, admin: httpx.AsyncClient, context: AppContext, settings: Settings
) -> None:
    limit = settings.max_upload_bytes
    declared = await admin.post(
        f"/admin/v1{UPLOAD}",
        content=b"",
        headers={**OPERATOR, "content-length": str(2 * limit), **multipart_headers()},
    )
    assert (declared.status_code, declared.json()["error"]["code"]) == (413, "file_too_large")

    response = await operator.upload(
        "acme", "bot", {CONFIG: b" " * (2 << 20), WEIGHTS: b"\0" * 100}
    )
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (413, "file_too_large", CONFIG)


def multipart_headers() -> dict[str, str]:
    return {"content-type": "multipart/form-data; boundary=line"}


@pytest.mark.parametrize(
    ("headers", "content", "status", "code"),
    [
        ({"content-type": "application/json"}, b"{}", 415, "multipart_required"),
        ({}, b"{}", 415, "multipart_required"),
        ({"content-type": "multipart/form-data"}, b"", 415, "multipart_required"),
        (multipart_headers(), b"garbage", 400, "multipart_invalid"),
        (multipart_headers(), b"", 400, "length_mismatch"),
        (
            multipart_headers(),
            b'--line\r\nContent-Disposition: form-data; name="adapter_config.json"\r\n\r\n{',
            400,
            "length_mismatch",
        ),
        (
            multipart_headers() | {"content-encoding": "gzip"},
            b"\x1f\x8b",
            415,
            "content_encoding_unsupported",
        ),
    ],
)
async def test_body_that_is_no_upload_is_refused(
    admin: httpx.AsyncClient,
    settings: Settings,
    headers: dict[str, str],
    content: bytes,
    status: int,
    code: str,
) -> None:
    response = await admin.post(
        f"/admin/v1{UPLOAD}", content=content, headers={**OPERATOR, **headers}
    )
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert staged(settings) == []


async def test_a_file_sent_twice_is_refused(operator: Operator, tiny_base: BaseSpec) -> None:
    files = adapter_files(tiny_base)
    parts = [(CONFIG, (CONFIG, files[CONFIG])), (WEIGHTS, (WEIGHTS, files[WEIGHTS]))]
    response = await operator.call("POST", UPLOAD, files=[*parts, parts[0]])
    assert (response.status_code, response.json()["error"]["param"]) == (400, CONFIG)


async def test_a_file_sent_again_after_one_that_was_too_large_gets_413(
    operator: Operator, tiny_base: BaseSpec, settings: Settings
) -> None:
    files = adapter_files(tiny_base)
    parts = [(CONFIG, (CONFIG, content)) for content in (b" " * (2 << 20), files[CONFIG])]
    response = await operator.call(
        "POST", UPLOAD, files=[*parts, (WEIGHTS, (WEIGHTS, files[WEIGHTS]))]
    )
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (413, "file_too_large", CONFIG)
    assert stored_folders(settings) == [] and staged(settings) == []


async def test_any_field_name_will_do_where_the_file_name_is_right(
    operator: Operator, tiny_base: BaseSpec
) -> None:
    files = adapter_files(tiny_base)
    parts = [("files", (f"C:\\out/{name}", content)) for name, content in files.items()]
    assert (await operator.call("POST", UPLOAD, files=parts)).status_code == 201


async def test_chunked_upload_in_small_pieces_is_read_to_the_same_bytes(
    operator: Operator, admin: httpx.AsyncClient, tiny_base: BaseSpec
) -> None:
    files = {name: (name, data) for name, data in adapter_files(tiny_base).items()}
    request = admin.build_request("POST", f"/admin/v1{UPLOAD}", files=files, headers=OPERATOR)
    body = request.read()

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 97):
            yield body[start : start + 97]

    headers = {**OPERATOR, "content-type": request.headers["content-type"]}
    response = await admin.post(f"/admin/v1{UPLOAD}", content=pieces(), headers=headers)

    whole = (await operator.upload("acme", "bot", adapter_files(tiny_base))).json()
    assert response.status_code == 201
    assert response.json()["digest"] == whole["digest"]


async def test_adapter_for_another_known_shape_is_refused(
    operator: Operator, tiny_base: BaseSpec
) -> None:
    tensors = adapter_tensors(tiny_base)
    name = next(name for name in tensors if "lora_A" in name)
    tensors[name] = np.zeros((4, 32), np.float32)
    response = await operator.upload(
        "acme", "bot", {CONFIG: adapter_config(), WEIGHTS: save(tensors)}
    )
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (422, "shape_mismatch")
    json.dumps(error["report"])


async def test_client_that_leaves_while_sending_leaves_nothing(
    operator: Operator, admin_app: FastAPI, settings: Settings
) -> None:
    scope = {
        "type": "http",
        "method": "POST",
        "path": f"/admin/v1{UPLOAD}",
        "query_string": b"",
        "headers": [
            (b"authorization", OPERATOR["authorization"].encode()),
            (b"content-type", b"multipart/form-data; boundary=line"),
        ],
    }
    messages = iter(
        [
            {"type": "http.request", "body": b"--line\r\n", "more_body": True},
            {"type": "http.disconnect"},
        ]
    )
    sent = []

    async def receive() -> dict[str, object]:
        return next(messages)

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    await admin_app(scope, receive, send)

    assert sent == [] and staged(settings) == []


def test_staging_of_killed_processes_is_swept_and_others_kept(tmp_path: Path) -> None:
    for name, age_s in (("old", 2 * 86_400), ("young", 60)):
        folder = tmp_path / "uploads" / name
        folder.mkdir(parents=True)
        (folder / "adapter_model.safetensors").touch()
        os.utime(folder, (1e9 - age_s, 1e9 - age_s))

    sweep_staging(tmp_path, now_s=1e9)

    assert [path.name for path in (tmp_path / "uploads").iterdir()] == ["young"]
