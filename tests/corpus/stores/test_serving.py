"""A whole server on a bucket: uploads go there, workers and engines load from there, and check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import obstore
import pytest
import torch

from app.adapters.keeping import MAX_PUT_S
from app.api import create_admin_app
from app.context import AppContext
from app.settings import Settings
from engine.adapter_loader import AdapterLoader
from engine.messages import AdapterRef
from engine.residency import LoadResult
from lora.base_spec import BaseSpec
from lora.base_tensors import BaseTensors
from lora.digest import adapter_digest, hash_file
from lora.store import CONFIG_FILE, WEIGHTS_FILE, AdapterStore
from lora.store_open import open_objects, open_store
from tests.builders.adapter_files import adapter_files
from tests.builders.clock import Clock
from tests.builders.operator import OPERATOR, Operator
from tests.builders.part_sender import PartSender
from tests.builders.peft_models import make_adapter, make_tiny_llama
from tests.builders.waiting import wait_until
from tests.fixtures.object_store import S3Server

Load = Callable[[AdapterStore, AdapterRef], LoadResult]


@pytest.fixture
def settings(
    settings: Settings, s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    return settings.model_copy(
        update={
            "adapter_store": f"{bucket.replace('s3:', 's3+http:')}/adapters",
            "upload_part_bytes": 4096,
        }
    )


@pytest.fixture
def loaded(tmp_path: Path) -> Load:
    """What an engine makes of an adapter. Its base is tiny, with weights."""
    folder = make_tiny_llama(tmp_path / "base")
    base = BaseSpec.from_folder(folder)
    tensors = BaseTensors(folder, base, torch.float32)

    def load(store: AdapterStore, ref: AdapterRef) -> LoadResult:
        loader = AdapterLoader(store, base, tensors, num_threads=1)
        results: list[LoadResult] = []
        loader.start(ref)
        wait_until(lambda: bool(results.extend(loader.take_completed()) or results), timeout_s=30)
        loader.close()
        return results[0]

    return load


async def test_uploads_of_both_kinds_are_verified_from_the_bucket_and_leave_nothing_beside(
    operator: Operator,
    admin: httpx.AsyncClient,
    settings: Settings,
    tiny_base: BaseSpec,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await operator.new_tenant("acme")
    await operator.new_adapter("acme", "bot")
    single = await operator.push("acme", "bot", adapter_files(tiny_base, seed=1))

    files = adapter_files(tiny_base, seed=2)
    sender = PartSender(admin, OPERATOR, "/admin/v1/tenants/acme/adapters/bot/uploads")
    upload = await sender.begin(files)
    await sender.send_all(upload, files)
    assert (await sender.complete(upload)).status_code == 202
    await operator.run_jobs()
    in_parts = await operator.done("GET", "/tenants/acme/adapters/bot/versions/v2")

    assert (single["state"], in_parts["state"]) == ("active", "active")
    assert list((settings.data_dir / "uploads").iterdir()) == []

    def lose(rows: object) -> bytes:
        raise OSError("the bucket goes away before the index is put")

    monkeypatch.setattr("lora.store_object.canonical_rows", lose)
    half = await operator.upload("acme", "bot", adapter_files(tiny_base, seed=3))
    assert half.status_code == 503
    await operator.done("DELETE", "/tenants/acme/adapters/bot", params={"force": True})
    await operator.run_jobs_after()
    assert {path.rpartition("/")[2] for path in kept(settings)} == {CONFIG_FILE, WEIGHTS_FILE}
    await operator.run_jobs_after(MAX_PUT_S)
    assert kept(settings) == []


def kept(settings: Settings) -> list[str]:
    """The objects in the bucket, but for parts."""
    found = obstore.list(open_objects(settings.adapter_store)).collect()
    return [meta["path"] for meta in found if not meta["path"].startswith(".uploads/")]


async def test_a_bucket_that_is_away_refuses_uploads_by_name(
    operator: Operator, tiny_base: BaseSpec, context: AppContext, bucket: str
) -> None:
    await operator.new_tenant("acme")
    await operator.new_adapter("acme", "bot")
    options = {"endpoint": "http://127.0.0.1:1", "retry_config": {"max_retries": 0}}
    away = open_store(
        context.settings.adapter_store, cache=context.settings.data_dir / "cache", **options
    )
    app = create_admin_app(replace(context, store=away))
    files = {name: (name, data) for name, data in adapter_files(tiny_base).items()}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://tenfold.test", headers=OPERATOR
    ) as client:
        path = "/admin/v1/tenants/acme/adapters/bot/versions"
        response = await client.post(path, files=files)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "dependency_unavailable"
    assert bucket not in response.text and "127.0.0.1" not in response.text
    versions = await operator.done("GET", "/tenants/acme/adapters/bot/versions")
    assert versions["data"] == []


@pytest.mark.parametrize("place", ["copy", "bucket"])
def test_an_engine_checks_the_digest_of_what_it_loads_wherever_it_was_damaged(
    s3: S3Server, bucket: str, tmp_path: Path, loaded: Load, place: str
) -> None:
    folder = make_adapter(tmp_path / "base", tmp_path / "adapter", seed=1, r=4)
    files = {name: folder / name for name in (CONFIG_FILE, WEIGHTS_FILE)}
    digest = adapter_digest(hash_file(path) for path in files.values())
    store = open_store(bucket, cache=tmp_path / "cache", **s3.options())
    locator = store.put("ten_acme", digest, files)
    ref = AdapterRef(tenant_id="ten_acme", digest=digest, locator=locator)
    assert loaded(store, ref).error is None  # the control

    damaged = bytearray(files[WEIGHTS_FILE].read_bytes())
    damaged[-1] ^= 1
    (tmp_path / "cache" / locator / WEIGHTS_FILE).write_bytes(damaged)
    if place == "copy":  # fetched anew, and well
        assert loaded(store, ref).error is None
    else:
        objects = open_objects(bucket, **s3.options())
        obstore.put(objects, f"{locator}/{WEIGHTS_FILE}", bytes(damaged))
        error = loaded(store, ref).error
        assert error is not None and error.code == "adapter_corrupt"


@pytest.mark.parametrize("place", ["copy", "bucket"])
async def test_a_worker_rejects_what_the_bucket_has_damaged_and_not_what_is_but_a_copy(
    operator: Operator,
    context: AppContext,
    tiny_base: BaseSpec,
    s3: S3Server,
    bucket: str,
    place: str,
) -> None:
    tenant = await operator.new_tenant("acme")
    await operator.new_adapter("acme", "bot")
    version = (await operator.upload("acme", "bot", adapter_files(tiny_base))).json()
    locator = f"{tenant.id}/{version['digest'].removeprefix('sha256:')}"
    weights = context.store.fetch(locator) / WEIGHTS_FILE
    damaged = bytearray(weights.read_bytes())
    damaged[-1] ^= 1
    weights.write_bytes(damaged)
    if place == "bucket":
        objects = open_objects(f"{bucket}/adapters", **s3.options())
        obstore.put(objects, f"{locator}/{WEIGHTS_FILE}", bytes(damaged))
    await operator.run_jobs()
    checked = await operator.done("GET", "/tenants/acme/adapters/bot/versions/v1")
    rules = [check["rule"] for check in checked["report"]["checks"]]
    if place == "copy":
        assert checked["state"] == "active" and "adapter_corrupt" not in rules
    else:
        assert (checked["state"], rules) == ("rejected", ["adapter_corrupt"])


@pytest.mark.parametrize("lifetime_s", [0, 300])
async def test_files_are_downloaded_from_the_bucket_by_a_signed_url_or_through_the_api(
    operator: Operator,
    context: AppContext,
    tiny_base: BaseSpec,
    clock: Clock,
    lifetime_s: int,
) -> None:
    await operator.new_tenant("acme")
    await operator.new_adapter("acme", "bot")
    files = adapter_files(tiny_base)
    assert (await operator.upload("acme", "bot", files)).status_code == 201
    settings = context.settings.model_copy(update={"download_url_s": lifetime_s})
    app = create_admin_app(replace(context, settings=settings))
    path = "/admin/v1/tenants/acme/adapters/bot/versions/v1/download"
    transport = httpx.ASGITransport(app)
    async with (
        httpx.AsyncClient(transport=transport, base_url="http://tenfold.test") as api,
        httpx.AsyncClient() as anybody,
    ):
        listing = (await api.get(path, headers=OPERATOR)).json()
        is_signed = lifetime_s > 0
        expires_at = int(clock.now().timestamp()) + lifetime_s
        assert listing["expires_at"] == (expires_at if is_signed else None)
        for file in listing["files"]:
            url = file["url"]
            assert url.startswith("http://127.0.0.1" if is_signed else "/admin/v1/tenants/")
            answer = await (anybody.get(url) if is_signed else api.get(url, headers=OPERATOR))
            assert answer.content == files[file["path"]], answer.text
            if is_signed:  # the control: without its signature, or for another file, it opens none
                others = (url.partition("?")[0], url.replace(file["path"], "index.json"))
                assert [(await anybody.get(each)).status_code for each in others] == [403, 403]
