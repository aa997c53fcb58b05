"""No engine loads what was not tried: a version is tried on a real engine, over the real queue, and
its certificate says what came of it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import redis
from safetensors.numpy import save
from sqlalchemy import update

from app.adapters.certifier import NotTriedError, QueueCertifier
from app.context import AppContext
from app.db import tenant_scope
from app.tables import AdapterVersion
from engine.adapter_loader import AdapterLoader
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import AdapterRef, EngineRequest, ModuleFigure, TokenOutput
from engine.model_runner import ModelRunner
from engine.module_check import check_modules, checkable_modules, sampled_modules
from engine.transport import keys
from engine.transport.certificates import MAX_MODULE_ERROR, Certificates, Figures
from engine.transport.golden import trial_request
from lora.base_spec import BaseSpec
from lora.digest import adapter_digest, hash_file
from lora.manifest import read_manifest
from lora.store import CONFIG_FILE, WEIGHTS_FILE, LocalAdapterStore
from lora.values import MAX_MAGNITUDE
from lora.weights import load_weights
from tests.builders.adapter_files import adapter_config, adapter_files, adapter_tensors
from tests.builders.engines import make_request
from tests.builders.operator import Operator
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.running_engine import RunningEngine

VERSION = "/tenants/acme/adapters/bot/versions/v1"
FIGURES = Figures(golden=(0.5,), modules=(ModuleFigure(module="x", error=0.0, effect=0.1),))
DIGEST, OTHER = "sha256:" + "1" * 64, "sha256:" + "2" * 64


@pytest.fixture
async def acme(operator: Operator) -> str:
    tenant = await operator.new_tenant("acme")
    await operator.new_adapter("acme", "bot")
    return tenant.id


async def stored_certificate(context: AppContext, tenant_id: str, version_id: str) -> Any:
    async with context.database.session() as session:
        await tenant_scope(session, tenant_id)
        row = await session.get(AdapterVersion, version_id)
        assert row is not None
        return row.certificate


async def test_a_version_that_passed_has_a_certificate_of_what_was_measured(
    operator: Operator, context: AppContext, engine: RunningEngine, acme: str
) -> None:
    version = await operator.push("acme", "bot", adapter_files(context.base))

    assert version["state"] == "active", version["report"]
    figures = msgspec.convert(version["report"]["figures"], Figures)
    assert len(figures.golden) == 4 and min(figures.golden) > 0
    assert 1 <= len(figures.modules) <= 8
    assert max(each.error for each in figures.modules) <= MAX_MODULE_ERROR / 10
    assert all(0 < each.effect < 1 for each in figures.modules)
    stored = await stored_certificate(context, acme, version["id"])
    certificates = Certificates(QUEUE_SECRET, context.base.fingerprint)
    assert certificates.covers(version["digest"], stored["certificate"], figures)


async def test_a_trial_is_billed_to_nobody(
    operator: Operator, engine: RunningEngine, acme: str, context: AppContext, redis_url: str
) -> None:
    await operator.push("acme", "bot", adapter_files(context.base))
    with redis.Redis.from_url(redis_url) as server:
        assert server.xlen(keys.USAGE) == 0
        assert server.hlen(keys.LEASES) == 0
    assert engine.core.scheduler.num_sequences == 0


async def test_an_untrained_adapter_is_told_that_it_changes_nothing(
    operator: Operator, engine: RunningEngine, acme: str, context: AppContext
) -> None:
    tensors = adapter_tensors(context.base)
    zeroed = {name: data * 0 if "lora_B" in name else data for name, data in tensors.items()}
    version = await operator.push(
        "acme", "bot", {CONFIG_FILE: adapter_config(), WEIGHTS_FILE: save(zeroed)}
    )

    assert version["state"] == "active"
    rules = [check["rule"] for check in version["report"]["checks"]]
    assert rules.count("no_effect") == 1
    assert version["report"]["figures"]["golden"] == [0.0] * 4


async def test_numbers_that_drown_the_model_are_refused(
    operator: Operator, engine: RunningEngine, acme: str, context: AppContext
) -> None:
    """Each of them is taken, and so is the scale; together they drown it."""
    modules = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    tensors = {
        name: np.full_like(data, MAX_MAGNITUDE)
        for name, data in adapter_tensors(context.base, modules=modules).items()
    }
    config = adapter_config(
        lora_alpha=40_000, target_modules=[name.removeprefix("mlp.") for name in modules]
    )
    version = await operator.push("acme", "bot", {CONFIG_FILE: config, WEIGHTS_FILE: save(tensors)})

    assert version["state"] == "rejected"
    assert "canary_nonfinite" in [check["rule"] for check in version["report"]["checks"]]
    other = await operator.push("acme", "bot", adapter_files(context.base, seed=7))
    assert other["state"] == "active"


async def test_an_adapter_that_no_engine_has_room_for_is_refused_at_its_trial(
    operator: Operator, engine: RunningEngine, acme: str, context: AppContext
) -> None:
    """Its pages alone are more than the pool's; it was tried anew for ever."""
    tensors = adapter_tensors(context.base, rank=1024, modules=list(context.base.linear_modules()))
    config = adapter_config(r=1024, target_modules="all-linear")
    version = await operator.push("acme", "bot", {CONFIG_FILE: config, WEIGHTS_FILE: save(tensors)})

    assert version["state"] == "rejected"
    assert "adapter_too_large" in [check["rule"] for check in version["report"]["checks"]]
    other = await operator.push("acme", "bot", adapter_files(context.base, seed=7))
    assert other["state"] == "active"


async def test_numbers_beyond_reckoning_are_refused_before_an_engine_sees_them(
    operator: Operator, acme: str, context: AppContext
) -> None:
    tensors = {
        name: np.full_like(data, 1e30) for name, data in adapter_tensors(context.base).items()
    }
    version = await operator.push(
        "acme", "bot", {CONFIG_FILE: adapter_config(), WEIGHTS_FILE: save(tensors)}
    )
    assert version["state"] == "rejected"
    assert {check["rule"] for check in version["report"]["checks"]} == {"dtype_overflow"}


async def test_without_an_engine_a_version_waits_and_is_tried_when_one_is_there(
    operator: Operator,
    context: AppContext,
    acme: str,
    tmp_path: Path,
    redis_url: str,
    tiny_base_folder: Path,
) -> None:
    version = await operator.push("acme", "bot", adapter_files(context.base))
    assert version["state"] == "verifying"

    with RunningEngine(tmp_path, redis_url, model=tiny_base_folder):
        deadline = time.monotonic() + 30
        while version["state"] == "verifying" and time.monotonic() < deadline:
            await operator.run_jobs_after(60)
            version = await operator.done("GET", VERSION)
            await asyncio.sleep(0.1)
    assert version["state"] == "active"


async def test_a_version_from_before_there_were_certificates_gets_one(
    operator: Operator, context: AppContext, engine: RunningEngine, acme: str
) -> None:
    files = adapter_files(context.base)
    version = await operator.push("acme", "bot", files)
    async with context.database.session() as session:
        await tenant_scope(session, acme)
        await session.execute(update(AdapterVersion).values(certificate=None))
        await session.commit()

    again = (await operator.upload("acme", "bot", files)).json()
    assert (again["id"], again["state"]) == (version["id"], "active")
    await operator.run_jobs()
    stored = await stored_certificate(context, acme, version["id"])
    certificates = Certificates(QUEUE_SECRET, context.base.fingerprint)
    assert certificates.is_valid(version["digest"], stored["certificate"])


async def test_an_engine_that_cannot_be_asked_says_nothing_of_the_adapter(
    certifier: QueueCertifier,
) -> None:
    with pytest.raises(NotTriedError):
        await certifier.certify("ten_a", DIGEST, "ten_a/" + "1" * 64)


class TrialBench:
    """A core that admits only what is certified, and one adapter in its store."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.base = BaseSpec.from_folder(model)
        self.certificates = Certificates(QUEUE_SECRET, self.base.fingerprint)
        files = {}
        for name, content in adapter_files(self.base).items():
            files[name] = folder / name
            files[name].write_bytes(content)
        self.files = files
        store = LocalAdapterStore(folder / "store")
        config = EngineConfig(pool_bytes=1 << 22)
        runner = ModelRunner(config, self.base, model)
        self.tensors = runner.base_tensors
        self.loader = AdapterLoader(store, self.base, runner.base_tensors, admits=self._admits)
        self.core = EngineCore(config, self.base, runner, self.loader, "bench", admits=self._admits)
        digest = adapter_digest(hash_file(path, name) for name, path in files.items())
        locator = store.put("ten_a", digest, files)
        self.ref = AdapterRef(tenant_id="ten_a", digest=digest, locator=locator)

    def _admits(self, ref: AdapterRef) -> bool:
        return self.certificates.is_valid(ref.digest, ref.certificate)

    def ref_with(self, **changes: object) -> AdapterRef:
        return msgspec.structs.replace(self.ref, **changes)

    def run(self, request: EngineRequest) -> TokenOutput:
        self.core.add(request)
        last: TokenOutput | None = None
        deadline = time.monotonic() + 30
        while self.core.has_work and time.monotonic() < deadline:
            for batch in self.core.step().values():
                last = batch.outputs[-1]
        assert last is not None
        return last


@pytest.fixture
def bench(tmp_path: Path, tiny_base_folder: Path) -> Any:
    made = TrialBench(tmp_path, tiny_base_folder)
    yield made
    made.loader.close()


def test_an_engine_refuses_what_is_not_certified(bench: TrialBench) -> None:
    good = bench.certificates.issue(bench.ref.digest, FIGURES)
    of_another_base = Certificates(QUEUE_SECRET, "sha256:other").issue(bench.ref.digest, FIGURES)
    of_another_secret = Certificates("x" * 32, bench.base.fingerprint)
    wrong = {
        "none": "",
        "of another digest": bench.certificates.issue(OTHER, FIGURES),
        "of another base": of_another_base,
        "of another secret": of_another_secret.issue(bench.ref.digest, FIGURES),
        "cut": good[:-1],
        "longer": good + "0",
        "with other figures": "0" * 64 + good[64:],
        "not ASCII": good[:-1] + "é",
    }
    for what, certificate in wrong.items():
        ref = bench.ref_with(certificate=certificate)
        output = bench.run(make_request(what, [1, 2, 3], adapter=ref, max_tokens=2))
        assert output.error is not None and output.error.code == "adapter_uncertified", what
    assert bench.core.residency.num_loads == 0

    ref = bench.ref_with(certificate=good)
    output = bench.run(make_request("certified", [1, 2, 3], adapter=ref, max_tokens=2))
    assert output.error is None and output.num_generated_tokens == 2


def test_only_a_trial_may_use_what_is_on_trial(bench: TrialBench) -> None:
    on_trial = bench.ref_with(is_on_trial=True)
    output = bench.run(make_request("a tenant's", [1, 2, 3], adapter=on_trial, max_tokens=2))
    assert output.error is not None and output.error.code == "adapter_uncertified"

    output = bench.run(trial_request("trial", "api", [1, 2, 3], on_trial))
    assert output.evidence is not None
    assert len(output.evidence.logits) == 64 and output.evidence.modules

    output = bench.run(make_request("after it", [1, 2, 3], adapter=bench.ref, max_tokens=2))
    assert output.error is not None and output.error.code == "adapter_uncertified"


def test_certificates_of_an_older_secret_are_believed_while_it_is_named() -> None:
    old = Certificates("old-secret-of-all", "base").issue(DIGEST, FIGURES)
    assert Certificates("new-secret-of-all, old-secret-of-all", "base").is_valid(DIGEST, old)
    assert not Certificates("new-secret-of-all", "base").is_valid(DIGEST, old)


def figures_of(bench: TrialBench, *, scale: float = 1.0) -> tuple[ModuleFigure, ...]:
    """Of all modules; the merge takes `scale` times what the file says."""
    config = bench.files[CONFIG_FILE].read_bytes()
    weights = bench.files[WEIGHTS_FILE]
    manifest = read_manifest(config, weights, bench.base)
    loaded = load_weights(manifest, weights, bench.base, bench.tensors)
    modules = [replace(each, scale=scale * each.scale) for each in checkable_modules(manifest)]
    return check_modules(modules, weights, loaded, bench.base, bench.tensors)


def test_every_module_is_served_as_its_merge(bench: TrialBench) -> None:
    figures = figures_of(bench)
    assert len(figures) == 2 * bench.base.num_layers
    assert max(each.error for each in figures) < 1e-5


@pytest.mark.parametrize("scale", [0.5, 1.01])
def test_control_a_wrong_scale_is_far_from_its_merge(bench: TrialBench, scale: float) -> None:
    assert min(each.error for each in figures_of(bench, scale=scale)) > MAX_MODULE_ERROR


def test_the_same_modules_are_sampled_for_the_same_digest(bench: TrialBench) -> None:
    config = bench.files[CONFIG_FILE].read_bytes()
    manifest = read_manifest(config, bench.files[WEIGHTS_FILE], bench.base)
    assert sampled_modules(manifest, DIGEST) == sampled_modules(manifest, DIGEST)
