"""A dry run says what an upload would be answered, and keeps nothing; a plan says how much may be
replaced of the base."""

from __future__ import annotations

from pathlib import Path

import httpx
import numpy as np
from safetensors.numpy import load, save

from app.settings import Settings
from lora.base_spec import BaseSpec
from lora.store import CONFIG_FILE, WEIGHTS_FILE
from tests.builders.adapter_files import adapter_config, adapter_files, adapter_tensors
from tests.builders.operator import Operator, Tenant

Files = dict[str, bytes]


async def validate(operator: Operator, files: Files, tenant: str = "acme") -> httpx.Response:
    parts = {name: (name, content) for name, content in files.items()}
    return await operator.call("POST", f"/tenants/{tenant}/adapters/bot/validate", files=parts)


async def test_a_dry_run_tells_all_and_keeps_nothing(
    operator: Operator, acme: Tenant, tiny_base: BaseSpec, settings: Settings
) -> None:
    files = adapter_files(tiny_base)
    response = await validate(operator, files)

    assert response.status_code == 200, response.text
    told = response.json()
    assert (told["object"], told["report"]["status"]) == ("adapter.validation", "accepted")
    assert told["manifest"]["max_rank"] == 4 and told["report"]["duration_ms"] > 0
    assert (await operator.done("GET", "/tenants/acme/adapters/bot/versions"))["data"] == []
    assert left_over(settings) == []
    uploaded = (await operator.upload("acme", "bot", files)).json()
    assert uploaded["digest"] == told["digest"]


async def test_a_dry_run_reads_the_numbers_too(
    operator: Operator, acme: Tenant, tiny_base: BaseSpec
) -> None:
    tensors = adapter_tensors(tiny_base)
    next(iter(tensors.values()))[0, 0] = np.inf
    response = await validate(
        operator, {CONFIG_FILE: adapter_config(), WEIGHTS_FILE: save(tensors)}
    )
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (422, "tensor_nonfinite")
    assert error["report"]["checks"][0]["hint"]


async def test_a_report_lists_every_finding_with_what_to_do(
    operator: Operator, acme: Tenant, tiny_base: BaseSpec
) -> None:
    tensors = adapter_tensors(tiny_base)
    tensors[next(iter(tensors))] = np.zeros((4, 32), np.float32)
    config = adapter_config(task_type="SEQ_CLS", use_qalora=True)
    files = {CONFIG_FILE: config, WEIGHTS_FILE: save(tensors)}
    error = (await validate(operator, files)).json()["error"]
    checks = {check["rule"]: check for check in error["report"]["checks"]}
    assert {"task_type_unsupported", "variant_unsupported", "shape_mismatch"} <= checks.keys()
    assert {"rule", "severity", "message", "expected", "actual", "file"} <= checks[
        "shape_mismatch"
    ].keys()
    assert checks["shape_mismatch"]["file"] == WEIGHTS_FILE
    assert "CAUSAL_LM" in checks["task_type_unsupported"]["hint"]


async def test_a_missing_file_is_named(operator: Operator, acme: Tenant) -> None:
    response = await validate(operator, {CONFIG_FILE: adapter_config()})
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("adapter_empty", WEIGHTS_FILE)
    assert [check["rule"] for check in error["report"]["checks"]] == ["adapter_empty"]


async def test_a_tenant_may_try_its_own_adapters_only(
    operator: Operator, api: httpx.AsyncClient, acme: Tenant, tiny_base: BaseSpec
) -> None:
    other = await operator.new_tenant("globex")
    parts = {name: (name, content) for name, content in adapter_files(tiny_base).items()}
    path = "/v1/adapters/bot/validate"
    own = await api.post(path, files=parts, headers=acme.headers)
    foreign = await api.post(path, files=parts, headers=other.headers)
    assert (own.status_code, foreign.status_code) == (200, 404)


def left_over(settings: Settings) -> list[Path]:
    kept = Path(settings.adapter_store).glob("ten_*")
    return [*(settings.data_dir / "uploads").glob("*"), *kept]


def with_whole_head(base: BaseSpec) -> tuple[Files, int]:
    """An adapter that replaces the head, and the bytes of that."""
    tensors = load(adapter_files(base)[WEIGHTS_FILE])
    head = np.zeros((base.vocab_size, base.hidden_size), np.float32)
    tensors["base_model.model.lm_head.weight"] = head
    config = adapter_config(modules_to_save=["lm_head"])
    return {CONFIG_FILE: config, WEIGHTS_FILE: save(tensors)}, head.nbytes


async def test_a_plan_says_how_many_bytes_may_replace_the_base_and_a_tenant_may_differ(
    operator: Operator, acme: Tenant, tiny_base: BaseSpec
) -> None:
    files, num_bytes = with_whole_head(tiny_base)
    assert (await validate(operator, files)).status_code == 200

    await operator.done("POST", "/plans", json={"name": "small", "limits": {"override_bytes": 0}})
    await operator.done("PUT", "/tenants/acme/plan", json={"plan": "small"})
    for response in (await validate(operator, files), await operator.upload("acme", "bot", files)):
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (422, "modules_to_save_not_allowed")
        assert str(num_bytes) in error["message"] + str(error["report"])

    for limit, status in ((num_bytes, 200), (num_bytes - 1, 422), (None, 200)):
        limits = {"limits": {"override_bytes": limit}}
        await operator.done("PUT", "/tenants/acme/limits", json=limits)
        assert (await validate(operator, files)).status_code == status, limit
