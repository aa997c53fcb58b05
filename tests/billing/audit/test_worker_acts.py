"""What a worker does by itself is in the audit log, under its job, as what anybody else does."""

from __future__ import annotations

from typing import Any

import pytest

from app.adapters import jobs as adapter_jobs
from lora.base_spec import BaseSpec
from tests.builders.adapter_files import adapter_config, adapter_files
from tests.builders.operator import Operator

BOT = "/tenants/acme/adapters/bot"


@pytest.fixture(autouse=True)
async def acme_with_a_bot(operator: Operator) -> None:
    await operator.new_tenant("acme")
    await operator.new_adapter("acme", "bot")


async def acts(operator: Operator) -> list[dict[str, Any]]:
    """What the worker did, by the tenant's chain, which must be whole."""
    assert (await operator.done("GET", "/audit/acme/verification"))["is_intact"]
    events = (await operator.done("GET", "/audit/acme", params={"limit": 100}))["data"]
    return [event for event in events if event["actor"] == "worker"]


async def test_a_version_that_a_worker_activated_says_so(
    operator: Operator, tiny_base: BaseSpec
) -> None:
    version = await operator.push("acme", "bot", adapter_files(tiny_base))
    moved, act = await acts(operator)
    assert moved["action"] == "alias.moved", "the first version takes `prod`"
    assert (act["action"], act["target"]) == ("version.activated", version["id"])
    assert (act["before"]["state"], act["after"]["state"]) == ("verifying", "active")
    assert act["request_id"].startswith("job_")


async def test_a_version_that_a_worker_rejected_says_so(
    operator: Operator, tiny_base: BaseSpec
) -> None:
    files = adapter_files(tiny_base)
    weights = bytearray(files["adapter_model.safetensors"])
    weights[-4:] = b"\x00\x00\xc0\x7f"  # a NaN, which only the worker reads
    version = await operator.push(
        "acme", "bot", files | {"adapter_model.safetensors": bytes(weights)}
    )
    (act,) = await acts(operator)
    assert version["state"] == "rejected"
    assert (act["action"], act["after"]["state"]) == ("version.rejected", "rejected")


async def test_bytes_that_a_worker_erased_say_so(operator: Operator, tiny_base: BaseSpec) -> None:
    files = adapter_files(tiny_base)
    await operator.push("acme", "bot", files)
    second = await operator.push(
        "acme", "bot", files | {"adapter_config.json": adapter_config(r=4, lora_alpha=16)}
    )
    await operator.done("DELETE", f"{BOT}/versions/v2")
    await operator.run_jobs_after()
    last = (await acts(operator))[-1]
    assert (last["action"], last["target"]) == ("version.erased", second["id"])


async def test_a_job_that_failed_leaves_no_word_of_what_it_did_not_do(
    operator: Operator, tiny_base: BaseSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("the disk is gone")

    monkeypatch.setattr(adapter_jobs, "finish_job", fail)
    await operator.upload("acme", "bot", adapter_files(tiny_base))
    await operator.run_jobs()
    assert await acts(operator) == []
    assert (await operator.done("GET", f"{BOT}/versions/v1"))["state"] == "verifying"
