"""Which store a URL names, and how its bucket is reached.

Knows nothing of what is stored. Credentials, regions and endpoints are the cloud's own settings,
from the environment or the machine's identity, as obstore finds them: they are in no URL of ours.
Invariant: a URL of a scheme that is not listed here opens nothing.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obstore.store import LocalStore, from_url

from lora.store import AdapterStore, LocalAdapterStore
from lora.store_cache import StoreCache
from lora.store_object import ObjectAdapterStore
from lora.store_parts import PartStore

if TYPE_CHECKING:  # the library has this name for type checkers only
    from obstore.store import ObjectStore

OBJECT_SCHEMES = frozenset({"s3", "s3a", "gs", "az", "azure", "abfs", "abfss"})
PLAIN_HTTP = "+http"
"""After a scheme: the endpoint, which the environment names, may be asked without TLS."""
GIBIBYTE = 1 << 30
DEFAULT_CACHE = Path(".tenfold/adapter-cache")
DEFAULT_CACHE_BYTES = 20 * GIBIBYTE
PARTS_FOLDER = ".uploads"
CONNECT_TIMEOUT = timedelta(seconds=3)
# The library's own 30 s end a large file on a slow line; its 3 minutes of retries a client's
# patience.
REQUEST_TIMEOUT = timedelta(minutes=5)
RETRY_TIMEOUT = timedelta(seconds=10)
MAX_RETRIES = 3


def open_store(
    url_or_path: str,
    *,
    cache: Path = DEFAULT_CACHE,
    max_cache_bytes: int = DEFAULT_CACHE_BYTES,
    **options: Any,
) -> AdapterStore:
    """The store that `url_or_path` names: a folder's path, `file:///...`, or a bucket's URL.

    cache: where copies of a bucket's adapters are kept, of `max_cache_bytes` together.
    options: of the bucket, beside those in the environment (`obstore.store.S3Config` and others).
    Raises ValueError for another scheme.
    """
    folder = _local_folder(url_or_path)
    if folder is not None:
        return LocalAdapterStore(folder)
    objects = open_objects(url_or_path, **options)
    return ObjectAdapterStore(objects, StoreCache(cache, max_cache_bytes))


def open_parts(url_or_path: str, **options: Any) -> PartStore:
    """Where the parts of unfinished uploads are kept: beside the adapters, in every store.

    Once it is wanted it raises ValueError for a scheme that `open_store` does not know.
    """
    folder = _local_folder(url_or_path)
    if folder is not None:
        return PartStore(
            partial(LocalStore, folder / PARTS_FOLDER, mkdir=True, automatic_cleanup=True)
        )
    url = f"{url_or_path.rstrip('/')}/{PARTS_FOLDER}"
    return PartStore(partial(open_objects, url, **options))


def open_objects(url: str, **options: Any) -> ObjectStore:
    """A bucket, or the part of one below a prefix. Raises ValueError for another scheme."""
    scheme, _, place = url.partition("://")
    scheme, plus, _ = scheme.partition(PLAIN_HTTP)
    if scheme not in OBJECT_SCHEMES:
        raise ValueError(
            f"adapter store {url!r}: a folder, file:///..., s3://, gs:// or az:// is expected"
        )
    client_options: dict[str, Any] = {
        "connect_timeout": CONNECT_TIMEOUT,
        "timeout": REQUEST_TIMEOUT,
        "allow_http": bool(plus),
    }
    retry_config: dict[str, Any] = {"max_retries": MAX_RETRIES, "retry_timeout": RETRY_TIMEOUT}
    for name, defaults in (("client_options", client_options), ("retry_config", retry_config)):
        options[name] = {**defaults, **options.get(name, {})}
    return from_url(f"{scheme}://{place}", **options)


def _local_folder(url_or_path: str) -> Path | None:
    scheme, separator, rest = url_or_path.partition("://")
    if not separator:
        return Path(url_or_path)
    return Path(rest) if scheme == "file" and rest.startswith("/") else None
