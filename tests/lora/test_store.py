"""The local adapter store: complete or absent, by (tenant, digest), and never outside its root."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lora.store import (
    CONFIG_FILE,
    STALE_STAGING_S,
    WEIGHTS_FILE,
    AdapterCorruptError,
    AdapterMissingError,
    LocalAdapterStore,
    locator_of,
)
from lora.store_open import open_store
from tests.builders.adapters import lora_tensors, write_adapter

Adapter = tuple[dict[str, Path], str]


@pytest.fixture
def adapter(tmp_path: Path) -> Adapter:
    return write_adapter(tmp_path / "upload", lora_tensors())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> LocalAdapterStore:
    return LocalAdapterStore(root)


def test_what_was_put_is_fetched_byte_for_byte(store: LocalAdapterStore, adapter: Adapter) -> None:
    files, digest = adapter
    folder = store.fetch(store.put("ten_acme", digest, files))
    assert {path.name for path in folder.iterdir()} == {CONFIG_FILE, WEIGHTS_FILE}
    for name, path in files.items():
        assert (folder / name).read_bytes() == path.read_bytes()


def test_putting_twice_gives_the_same_locator(store: LocalAdapterStore, adapter: Adapter) -> None:
    files, digest = adapter
    assert store.put("ten_acme", digest, files) == store.put("ten_acme", digest, files)


def test_putting_at_once_from_many_threads_leaves_one_complete_adapter(
    store: LocalAdapterStore, root: Path, adapter: Adapter
) -> None:
    files, digest = adapter
    with ThreadPoolExecutor(8) as pool:
        locators = list(pool.map(lambda _: store.put("ten_acme", digest, files), range(16)))
    assert len(set(locators)) == 1
    assert len(list(store.fetch(locators[0]).iterdir())) == 2
    assert list((root / ".staging").iterdir()) == []


def test_what_a_killed_process_left_is_removed_and_what_another_works_on_is_not(
    store: LocalAdapterStore, root: Path, adapter: Adapter
) -> None:
    for name, age_s in (("killed", 1.1 * STALE_STAGING_S), ("at work", 0.9 * STALE_STAGING_S)):
        folder = root / ".staging" / name / "adapter"
        folder.mkdir(parents=True)
        (folder / WEIGHTS_FILE).write_bytes(b"half")
        os.utime(folder.parent, (0, time.time() - age_s))
    store.put("ten_acme", adapter[1], adapter[0])
    assert [path.name for path in (root / ".staging").iterdir()] == ["at work"]


def test_bytes_that_are_not_the_digests_are_refused_and_leave_nothing(
    store: LocalAdapterStore, root: Path, adapter: Adapter
) -> None:
    files, digest = adapter
    files[WEIGHTS_FILE].write_bytes(b"other")
    with pytest.raises(AdapterCorruptError):
        store.put("ten_acme", digest, files)
    with pytest.raises(AdapterMissingError):
        store.fetch(locator_of("ten_acme", digest))
    assert [path.name for path in root.iterdir()] == [".staging"]
    assert list((root / ".staging").iterdir()) == []


def test_one_tenants_adapter_is_missing_for_another(
    store: LocalAdapterStore, adapter: Adapter
) -> None:
    files, digest = adapter
    store.put("ten_acme", digest, files)
    with pytest.raises(AdapterMissingError):
        store.fetch(locator_of("ten_globex", digest))


def test_deleting_one_tenants_copy_keeps_the_others(
    store: LocalAdapterStore, adapter: Adapter
) -> None:
    files, digest = adapter
    acme = store.put("ten_acme", digest, files)
    globex = store.put("ten_globex", digest, files)
    store.delete(acme)
    store.delete(acme)
    with pytest.raises(AdapterMissingError):
        store.fetch(acme)
    assert store.fetch(globex).is_dir()


def test_a_folder_without_its_weights_is_missing(
    store: LocalAdapterStore, adapter: Adapter
) -> None:
    files, digest = adapter
    locator = store.put("ten_acme", digest, files)
    (store.fetch(locator) / WEIGHTS_FILE).unlink()
    assert not store.contains(locator)
    with pytest.raises(AdapterMissingError):
        store.fetch(locator)


@pytest.mark.parametrize("damage", ["changed", "cut", "incomplete", "empty"])
def test_putting_again_repairs_what_is_damaged(
    store: LocalAdapterStore, root: Path, adapter: Adapter, damage: str
) -> None:
    files, digest = adapter
    folder = store.fetch(store.put("ten_acme", digest, files))
    weights = folder / WEIGHTS_FILE
    content = weights.read_bytes()
    if damage in ("changed", "cut"):
        weights.write_bytes(content[:-1] + (b"\x01" if damage == "changed" else b""))
    else:
        weights.unlink()
    if damage == "empty":
        (folder / CONFIG_FILE).unlink()

    locator = store.put("ten_acme", digest, files)

    assert (store.fetch(locator) / WEIGHTS_FILE).read_bytes() == content
    assert list((root / ".staging").iterdir()) == []


def test_putting_again_leaves_sound_bytes_where_they_are(
    store: LocalAdapterStore, adapter: Adapter
) -> None:
    files, digest = adapter
    folder = store.fetch(store.put("ten_acme", digest, files))
    before = folder.stat().st_ino
    assert store.fetch(store.put("ten_acme", digest, files)).stat().st_ino == before


def test_bytes_that_are_not_the_digests_replace_nothing(
    store: LocalAdapterStore, adapter: Adapter
) -> None:
    files, digest = adapter
    weights = store.fetch(store.put("ten_acme", digest, files)) / WEIGHTS_FILE
    weights.write_bytes(b"damaged")
    files[WEIGHTS_FILE].write_bytes(b"other")
    with pytest.raises(AdapterCorruptError):
        store.put("ten_acme", digest, files)
    assert weights.read_bytes() == b"damaged"


def test_repairing_at_once_from_many_threads_leaves_one_complete_adapter(
    store: LocalAdapterStore, root: Path, adapter: Adapter
) -> None:
    files, digest = adapter
    weights = store.fetch(store.put("ten_acme", digest, files)) / WEIGHTS_FILE
    weights.write_bytes(b"damaged")
    with ThreadPoolExecutor(8) as pool:
        locators = list(pool.map(lambda _: store.put("ten_acme", digest, files), range(16)))
    folder = store.fetch(locators[0])
    assert (folder / WEIGHTS_FILE).read_bytes() == files[WEIGHTS_FILE].read_bytes()
    assert list((root / ".staging").iterdir()) == []


@pytest.mark.parametrize(
    "locator",
    [
        "",
        "..",
        "../" + "a" * 64,
        "ten_acme/../" + "a" * 64,
        "/etc/" + "a" * 64,
        "ten_acme/" + "A" * 64,
        "ten_acme/" + "a" * 63,
        "ten_acme/" + "a" * 64 + "\n",
        "ten_acme/" + "a" * 64 + "/..",
        "ten acme/" + "a" * 64,
        ".staging/" + "a" * 64,
        "ten_acme\0/" + "a" * 64,
    ],
)
def test_what_is_no_locator_never_meets_a_path(store: LocalAdapterStore, locator: str) -> None:
    with pytest.raises(AdapterMissingError, match="not a locator"):
        store.fetch(locator)
    with pytest.raises(AdapterMissingError, match="not a locator"):
        store.delete(locator)


@pytest.mark.parametrize("tenant_id", ["", "..", "a/b", ".staging", "ten acme", "a" * 65])
def test_what_is_no_tenant_id_is_not_put(
    store: LocalAdapterStore, adapter: Adapter, tenant_id: str
) -> None:
    files, digest = adapter
    with pytest.raises(ValueError, match="not a tenant id"):
        store.put(tenant_id, digest, files)


@pytest.mark.parametrize("name", ["../escape", "adapter_model.bin", "README.md"])
def test_only_an_adapters_files_are_kept(
    store: LocalAdapterStore, adapter: Adapter, name: str
) -> None:
    files, digest = adapter
    with pytest.raises(ValueError, match="does not consist of"):
        store.put("ten_acme", digest, {**files, name: files[CONFIG_FILE]})


def test_a_store_is_opened_by_path_or_file_url(root: Path, adapter: Adapter) -> None:
    files, digest = adapter
    locator = open_store(str(root)).put("ten_acme", digest, files)
    assert open_store(f"file://{root}").fetch(locator).is_dir()
    with pytest.raises(ValueError, match="is expected"):
        open_store("ftp://bucket/adapters")
