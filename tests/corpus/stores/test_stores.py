"""One protocol, a local folder and a real S3 server: complete or absent, checked on every way."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import obstore
import psutil
import pytest

from lora.digest import adapter_digest, hash_file
from lora.store import (
    CHAT_TEMPLATE_FILE,
    CONFIG_FILE,
    WEIGHTS_FILE,
    AdapterCorruptError,
    AdapterMissingError,
    AdapterStore,
    LocalAdapterStore,
    StoreUnavailableError,
    locator_of,
)
from lora.store_open import open_objects, open_parts, open_store
from lora.store_parts import PartStore
from tests.builders.adapters import lora_tensors, write_adapter
from tests.builders.peak_memory import Peak
from tests.fixtures.object_store import S3Server

Adapter = tuple[dict[str, Path], str]
Open = Callable[[str], AdapterStore]
"""By the name of the process that opens it: each has its own cache."""
UPLOAD_ID, SHA = f"upl_{'0' * 26}", "ab" * 32
KINDS = ("folder", "s3")
MIB = 1 << 20
NUM_LARGE = 32 * MIB
MAX_GROWTH = 8 * MIB


@pytest.fixture
def adapter(tmp_path: Path) -> Adapter:
    return write_adapter(tmp_path / "upload", lora_tensors())


@pytest.fixture
def large(tmp_path: Path) -> Adapter:
    files, _ = write_adapter(tmp_path / "large", lora_tensors())
    with files[WEIGHTS_FILE].open("r+b") as file:
        file.truncate(NUM_LARGE)
    return files, adapter_digest(hash_file(path) for path in files.values())


@pytest.fixture
def open_s3(s3: S3Server, bucket: str, tmp_path: Path) -> Open:
    def opened(process: str, **changes: Any) -> AdapterStore:
        cache = tmp_path / "cache" / process
        return open_store(f"{bucket}/adapters", cache=cache, **s3.options(**changes))

    return opened


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> AdapterStore:
    if request.param == "folder":
        return open_store(f"file://{tmp_path / 'store'}")
    opened: Open = request.getfixturevalue("open_s3")
    return opened("a")


@pytest.fixture(params=KINDS)
def parts(request: pytest.FixtureRequest, tmp_path: Path) -> PartStore:
    if request.param == "folder":
        return open_parts(str(tmp_path / "store"))
    server: S3Server = request.getfixturevalue("s3")
    return open_parts(request.getfixturevalue("bucket"), **server.options())


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def growth_of(put: Callable[[], object]) -> int:
    """Bytes of memory that the second of two takes: what the first left warm is not counted."""
    put()
    process = psutil.Process()
    before = process.memory_info().rss
    with Peak(process) as peak:
        put()
    return peak.rss - before


def test_what_a_put_holds_in_memory_does_not_grow_with_the_file(
    store: AdapterStore, large: Adapter
) -> None:
    files, digest = large
    assert growth_of(lambda: store.put("ten_acme", digest, files)) <= MAX_GROWTH


def test_what_a_put_of_a_part_holds_does_not_grow_with_it(parts: PartStore, large: Adapter) -> None:
    path = large[0][WEIGHTS_FILE]
    growth = growth_of(lambda: parts.put(UPLOAD_ID, WEIGHTS_FILE, 1, SHA, path))
    assert growth <= MAX_GROWTH
    assert sum(map(len, parts.read(UPLOAD_ID, WEIGHTS_FILE, 1, SHA))) == NUM_LARGE


def test_what_was_put_is_fetched_byte_for_byte(store: AdapterStore, adapter: Adapter) -> None:
    files, digest = adapter
    locator = store.put("ten_acme", digest, files)
    assert locator == store.put("ten_acme", digest, files) == locator_of("ten_acme", digest)
    folder = store.fetch(locator)
    assert names_in(folder) == {CONFIG_FILE, WEIGHTS_FILE}
    for name, path in files.items():
        assert (folder / name).read_bytes() == path.read_bytes()


def test_one_tenants_adapter_is_missing_for_another(store: AdapterStore, adapter: Adapter) -> None:
    files, digest = adapter
    store.put("ten_acme", digest, files)
    with pytest.raises(AdapterMissingError):
        store.fetch(locator_of("ten_globex", digest))


def test_bytes_that_are_not_the_digests_are_refused_and_leave_nothing(
    store: AdapterStore, adapter: Adapter
) -> None:
    files, digest = adapter
    files[WEIGHTS_FILE].write_bytes(b"other")
    with pytest.raises(AdapterCorruptError):
        store.put("ten_acme", digest, files)
    with pytest.raises(AdapterMissingError):
        store.fetch(locator_of("ten_acme", digest))


def test_deleting_one_tenants_copy_keeps_the_others(store: AdapterStore, adapter: Adapter) -> None:
    files, digest = adapter
    acme, globex = (store.put(tenant, digest, files) for tenant in ("ten_acme", "ten_globex"))
    store.delete(acme)
    store.delete(acme)
    with pytest.raises(AdapterMissingError):
        store.fetch(acme)
    assert store.fetch(globex).is_dir()


@pytest.mark.parametrize("locator", ["", "..", "ten_acme/../" + "a" * 64, "/etc/" + "a" * 64])
def test_what_is_no_locator_names_nothing(store: AdapterStore, locator: str) -> None:
    for call in (store.fetch, store.contains, store.delete):
        with pytest.raises(AdapterMissingError, match="not a locator"):
            call(locator)


@pytest.mark.parametrize("name", [CONFIG_FILE, WEIGHTS_FILE, "index.json"])
def test_one_changed_byte_in_the_bucket_is_found_out_on_download_and_repaired_by_a_put(
    s3: S3Server, bucket: str, open_s3: Open, adapter: Adapter, name: str
) -> None:
    files, digest = adapter
    locator = open_s3("a").put("ten_acme", digest, files)
    objects = open_objects(f"{bucket}/adapters", **s3.options())
    content = bytearray(bytes(obstore.get(objects, f"{locator}/{name}").bytes()))
    content[-1] ^= 1
    obstore.put(objects, f"{locator}/{name}", bytes(content))
    with pytest.raises(AdapterCorruptError):
        open_s3("b").fetch(locator)

    open_s3("a").put("ten_acme", digest, files)
    assert (open_s3("b").fetch(locator) / CONFIG_FILE).is_file()


@pytest.mark.parametrize("change", [b"", b"longer"])
def test_a_file_of_another_length_in_the_bucket_is_found_out(
    s3: S3Server, bucket: str, open_s3: Open, adapter: Adapter, change: bytes
) -> None:
    files, digest = adapter
    locator = open_s3("a").put("ten_acme", digest, files)
    objects = open_objects(f"{bucket}/adapters", **s3.options())
    content = files[WEIGHTS_FILE].read_bytes()
    changed = content + change if change else content[:-1]
    obstore.put(objects, f"{locator}/{WEIGHTS_FILE}", changed)
    with pytest.raises(AdapterCorruptError):
        open_s3("b").fetch(locator)


def test_an_adapter_without_its_index_is_not_there(
    s3: S3Server, bucket: str, open_s3: Open, adapter: Adapter
) -> None:
    """As a process leaves it that is killed while it puts: the index is the last."""
    files, digest = adapter
    locator = open_s3("a").put("ten_acme", digest, files)
    obstore.delete(open_objects(f"{bucket}/adapters", **s3.options()), f"{locator}/index.json")
    with pytest.raises(AdapterMissingError):
        open_s3("b").fetch(locator)


def test_a_copy_is_downloaded_once_and_anew_where_it_is_damaged(
    open_s3: Open, adapter: Adapter
) -> None:
    files, digest = adapter
    store = open_s3("a")
    locator = store.put("ten_acme", digest, files)
    folder = store.fetch(locator)
    (folder / WEIGHTS_FILE).write_bytes(b"damaged")
    assert (store.fetch(locator) / WEIGHTS_FILE).read_bytes() == b"damaged"  # the loader looks
    anew = store.fetch(locator, anew=True)
    assert (anew / WEIGHTS_FILE).read_bytes() == files[WEIGHTS_FILE].read_bytes()


def test_what_is_deleted_elsewhere_is_served_from_no_copy(open_s3: Open, adapter: Adapter) -> None:
    files, digest = adapter
    one, other = open_s3("a"), open_s3("b")
    locator = one.put("ten_acme", digest, files)
    folder = other.fetch(locator)
    one.delete(locator)
    with pytest.raises(AdapterMissingError):
        other.fetch(locator)
    assert not folder.exists()


def test_copies_are_served_while_the_bucket_is_away_and_nothing_else_is(
    open_s3: Open, adapter: Adapter, s3: S3Server
) -> None:
    files, digest = adapter
    store = open_s3("a")
    kept = store.put("ten_acme", digest, files)
    other = store.put("ten_globex", digest, files)
    store.fetch(kept)
    away = open_s3("a", endpoint="http://127.0.0.1:1", retry_config={"max_retries": 0})
    assert (away.fetch(kept) / WEIGHTS_FILE).is_file()
    with pytest.raises(StoreUnavailableError):
        away.fetch(other)
    with pytest.raises(StoreUnavailableError):
        away.put("ten_acme", digest, files)


def test_a_key_that_is_wrong_opens_nothing(open_s3: Open, adapter: Adapter) -> None:
    files, digest = adapter
    locator = open_s3("a").put("ten_acme", digest, files)
    stranger = open_s3("b", secret_access_key="wrong")
    with pytest.raises(StoreUnavailableError):
        stranger.fetch(locator)
    with pytest.raises(StoreUnavailableError):
        stranger.put("ten_acme", digest, files)


def test_the_copy_that_was_wanted_least_recently_goes_first(
    open_s3: Open, adapter: Adapter, s3: S3Server, bucket: str, tmp_path: Path
) -> None:
    files, digest = adapter
    num_bytes = sum(path.stat().st_size for path in files.values())
    store = open_store(
        f"{bucket}/adapters",
        cache=tmp_path / "small",
        max_cache_bytes=2 * num_bytes,
        **s3.options(),
    )
    first, second, third = (store.put(f"ten_{n}", digest, files) for n in range(3))
    for locator in (first, second, first, third):
        store.fetch(locator)
    folders = {path.parent.name for path in (tmp_path / "small").glob("ten_*/*")}
    assert folders == {"ten_0", "ten_2"}
    assert store.fetch(second).is_dir()  # it is only a copy that went
    assert list((tmp_path / "small" / ".staging").iterdir()) == []


def test_a_file_larger_than_a_part_goes_up_in_several(open_s3: Open, tmp_path: Path) -> None:
    folder = tmp_path / "large"
    folder.mkdir()
    (folder / CONFIG_FILE).write_text("{}")
    (folder / WEIGHTS_FILE).write_bytes(bytes(range(256)) * (80 << 10))  # 20 MiB
    files = {name: folder / name for name in (CONFIG_FILE, WEIGHTS_FILE)}
    digest = adapter_digest(hash_file(path) for path in files.values())
    locator = open_s3("a").put("ten_acme", digest, files)
    assert (open_s3("b").fetch(locator) / WEIGHTS_FILE).stat().st_size == 20 << 20


def test_parts_are_kept_read_and_removed(parts: PartStore, tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.write_bytes(b"part" * 1000)
    other = f"upl_{'1' * 26}"
    for upload_id in (UPLOAD_ID, other):
        parts.put(upload_id, WEIGHTS_FILE, 1, SHA, part)
        parts.put(upload_id, CONFIG_FILE, 12, SHA, part)
    assert b"".join(parts.read(UPLOAD_ID, WEIGHTS_FILE, 1, SHA)) == b"part" * 1000
    parts.delete(UPLOAD_ID, CONFIG_FILE, 12, SHA)
    parts.delete(UPLOAD_ID, CONFIG_FILE, 12, SHA)
    with pytest.raises(AdapterMissingError):
        list(parts.read(UPLOAD_ID, CONFIG_FILE, 12, SHA))
    parts.delete_all(UPLOAD_ID)
    parts.delete_all(UPLOAD_ID)
    with pytest.raises(AdapterMissingError):
        list(parts.read(UPLOAD_ID, WEIGHTS_FILE, 1, SHA))
    assert b"".join(parts.read(other, CONFIG_FILE, 12, SHA)) == b"part" * 1000


@pytest.mark.parametrize(
    ("upload_id", "file", "number", "sha256"),
    [
        ("..", WEIGHTS_FILE, 1, SHA),
        (UPLOAD_ID, "../other", 1, SHA),
        (UPLOAD_ID, WEIGHTS_FILE, 0, SHA),
        (UPLOAD_ID, WEIGHTS_FILE, 1, "../x"),
    ],
)
def test_what_is_no_part_meets_no_path(
    tmp_path: Path, upload_id: str, file: str, number: int, sha256: str
) -> None:
    with pytest.raises(ValueError, match="not a part"):
        open_parts(str(tmp_path)).put(upload_id, file, number, sha256, tmp_path / "part")


@pytest.mark.parametrize("url", ["ftp://host/x", "http://host/x", "memory://", "file://host/x"])
def test_a_url_of_another_kind_opens_nothing(url: str) -> None:
    with pytest.raises(ValueError, match="is expected"):
        open_store(url)


def test_a_file_is_read_a_piece_at_a_time(store: AdapterStore, adapter: Adapter) -> None:
    files, digest = adapter
    locator = store.put("ten_acme", digest, files)
    content = files[WEIGHTS_FILE].read_bytes()
    size = len(content) // 3 + 1
    pieces = [
        store.read_range(locator, WEIGHTS_FILE, start, size)
        for start in range(0, len(content), size)
    ]
    assert b"".join(pieces) == content and len(pieces) == 3
    for other, name in ((locator_of("ten_globex", digest), WEIGHTS_FILE), (locator, "x")):
        with pytest.raises(AdapterMissingError):
            store.read_range(other, name, 0, size)


def test_only_a_bucket_signs_and_only_for_a_locator(store: AdapterStore, adapter: Adapter) -> None:
    files, digest = adapter
    locator = store.put("ten_acme", digest, files)
    url = store.sign(locator, CONFIG_FILE, timedelta(minutes=1))
    assert url is None or httpx.get(url).content == files[CONFIG_FILE].read_bytes()
    assert (url is None) == isinstance(store, LocalAdapterStore)
    with pytest.raises(AdapterMissingError, match="not a locator"):
        store.sign("../other", CONFIG_FILE, timedelta(minutes=1))


def test_one_file_is_read_without_the_others(
    store: AdapterStore, adapter: Adapter, tmp_path: Path
) -> None:
    template = tmp_path / CHAT_TEMPLATE_FILE
    template.write_text("{{ messages }}")
    files = adapter[0] | {CHAT_TEMPLATE_FILE: template}
    digest = adapter_digest(hash_file(path, name) for name, path in files.items())
    locator = store.put("ten_acme", digest, files)
    assert store.read(locator, CHAT_TEMPLATE_FILE) == b"{{ messages }}"
    plain = store.put("ten_acme", adapter[1], adapter[0])
    for missing in (plain, locator_of("ten_globex", digest)):
        with pytest.raises(AdapterMissingError):
            store.read(missing, CHAT_TEMPLATE_FILE)
    assert (store.fetch(locator) / CHAT_TEMPLATE_FILE).read_text() == "{{ messages }}"


def test_an_adapter_is_contained_while_it_is_whole(store: AdapterStore, adapter: Adapter) -> None:
    files, digest = adapter
    locator = store.put("ten_acme", digest, files)
    assert store.contains(locator)
    assert not store.contains(locator_of("ten_globex", digest))
    store.delete(locator)
    assert not store.contains(locator)
    store.put("ten_acme", digest, files)
    assert store.contains(locator)


@pytest.mark.parametrize("name", ["index.json", CONFIG_FILE, WEIGHTS_FILE])
def test_what_a_delete_that_failed_has_left_is_not_contained(
    s3: S3Server, bucket: str, open_s3: Open, adapter: Adapter, name: str
) -> None:
    """Objects go one by one, the index first; whatever is gone, the rest is no adapter."""
    files, digest = adapter
    store = open_s3("a")
    locator = store.put("ten_acme", digest, files)
    obstore.delete(open_objects(f"{bucket}/adapters", **s3.options()), f"{locator}/{name}")
    assert not store.contains(locator)
    left = {CONFIG_FILE, WEIGHTS_FILE} - {name}
    assert all(store.read(locator, each) for each in left), "the control: it looks as if"
    store.put("ten_acme", digest, files)
    assert store.contains(locator)


def test_a_file_of_another_length_and_a_damaged_index_are_no_whole_adapter(
    s3: S3Server, bucket: str, open_s3: Open, adapter: Adapter
) -> None:
    files, digest = adapter
    store = open_s3("a")
    locator = store.put("ten_acme", digest, files)
    objects = open_objects(f"{bucket}/adapters", **s3.options())
    obstore.put(objects, f"{locator}/{WEIGHTS_FILE}", files[WEIGHTS_FILE].read_bytes()[:-1])
    assert not store.contains(locator)
    store.put("ten_acme", digest, files)
    obstore.put(objects, f"{locator}/index.json", b"[]")
    assert not store.contains(locator)


def test_of_a_bucket_that_is_away_nobody_says_what_it_contains(
    open_s3: Open, adapter: Adapter
) -> None:
    locator = open_s3("a").put("ten_acme", adapter[1], adapter[0])
    away = open_s3("a", endpoint="http://127.0.0.1:1", retry_config={"max_retries": 0})
    with pytest.raises(StoreUnavailableError):
        away.contains(locator)
