"""An etag is a function of what is shown of an object's state, and of nothing else."""

from __future__ import annotations

import hashlib
import json
from typing import Any, ClassVar

from app.api_keys.schemas import KeyCreated, KeyView
from app.etags import Tagged
from app.imports.schemas import ImportView
from app.uploads.schemas import UploadView
from app.uploads.tables import Upload, UploadPart
from tests.builders.clock import Clock

NOW = Clock().now()
KEY: dict[str, Any] = {
    "id": "key_1",
    "tenant_id": "ten_1",
    "name": "ci",
    "scopes": ["inference"],
    "allowed_models": None,
    "last4": "abcd",
    "created": NOW,
    "created_by": "operator",
    "expires_at": None,
    "disabled_at": None,
    "replaced_by": None,
    "api_version": "2026-11-30",
    "metadata": {},
}
IMPORT: dict[str, Any] = {
    "id": "imp_1",
    "adapter_id": "adp_1",
    "source": "hf://acme/bot",
    "revision": None,
    "sha256": None,
    "credential_ref": None,
    "license": None,
    "strict": False,
    "activate": True,
    "state": "running",
    "bytes_done": 0,
    "bytes_total": None,
    "version_id": None,
    "error": None,
    "created": NOW,
    "started_at": NOW,
    "ended_at": None,
}


class Thing(Tagged):
    stateless: ClassVar = frozenset({"progress"})

    name: str
    progress: int = 0


def test_an_etag_is_the_same_in_every_process_and_release_that_shows_the_same() -> None:
    text = json.dumps({"name": "a"}, separators=(",", ":"))
    assert Thing(name="a").etag == hashlib.sha256(text.encode()).hexdigest()[:32]
    assert Thing(name="a").model_dump()["etag"] == Thing(name="a").etag


def test_an_etag_changes_with_the_state_and_not_with_how_far_it_has_come() -> None:
    assert Thing(name="a", progress=1).etag == Thing(name="a", progress=2).etag
    assert Thing(name="a").etag != Thing(name="b").etag  # control


def test_a_key_has_the_same_etag_where_its_secret_is_shown() -> None:
    made = KeyCreated(**KEY, secret="tf_secret")
    assert made.etag == KeyView(**KEY).etag
    assert KeyView(**KEY | {"disabled_at": NOW}).etag != made.etag  # control


def test_an_import_that_makes_progress_is_in_the_same_state() -> None:
    before, after = (ImportView(**IMPORT | {"bytes_done": each}) for each in (0, 1000))
    assert before.etag == after.etag
    assert ImportView(**IMPORT | {"state": "cancelled"}).etag != before.etag  # control


def test_an_upload_is_in_the_same_state_whoever_looks_and_whatever_has_come() -> None:
    upload = Upload(
        id="upl_1",
        tenant_id="ten_1",
        adapter_id="adp_1",
        state="uploading",
        files=[{"path": "adapter_config.json", "bytes": 3, "sha256": "0" * 64, "locator": None}],
        part_bytes=10,
        created_at=NOW,
        expires_at=NOW,
    )
    part = UploadPart(upload_id="upl_1", path="adapter_config.json", number=1)
    mine = UploadView.of(upload, [], "/v1/adapters/bot/uploads/upl_1")
    theirs = UploadView.of(upload, [part], "/admin/v1/tenants/acme/adapters/bot/uploads/upl_1")
    assert mine.etag == theirs.etag and mine.files != theirs.files
    upload.state = "cancelled"
    assert UploadView.of(upload, [], "").etag != mine.etag  # control
