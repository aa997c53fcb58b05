"""Who has the files of a source, and with what a worker asks for them.

Knows nothing of jobs. Invariant: what is no longer allowed when the job runs is not asked, whatever
was allowed when it was made.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

import httpx

from app.errors import ApiError
from app.imports.addresses import Resolver, parse_networks, resolve_by_system
from app.imports.errors import ImportFailure, not_allowed
from app.imports.fetching import BucketPublisher, FolderPublisher, HubPublisher, Publisher
from app.imports.guarded_http import GuardedClient
from app.imports.sources import HTTPS_PORT, AllowList, Source, parse_source
from app.settings import WorkerSettings

# The Hub's files lie with others of its own names, to which it redirects.
HUB = "huggingface.co"
HUB_STORES = (".huggingface.co", ".hf.co")


class Publishers:
    """Of one worker. resolve: names to addresses; bucket_options: as `lora.store_open` takes."""

    def __init__(
        self,
        settings: WorkerSettings,
        resolve: Resolver = resolve_by_system,
        bucket_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises ValueError for settings that name no allow-list or network, OSError without CA."""
        self._allowed = AllowList.parse(settings.import_allow)
        self._hub = httpx.URL(settings.import_hub)
        self._bucket_options = bucket_options or {}
        cafile = settings.import_ca_file
        self._client = GuardedClient(
            self._allows_host,
            resolve,
            parse_networks(settings.import_networks),
            ssl.create_default_context(cafile=None if cafile is None else str(cafile)),
        )

    def open(self, source_text: str, token: str | None) -> Publisher:
        """Raises ImportFailure."""
        source = _parsed(source_text)
        if not self._allowed.allows(source):
            raise not_allowed(f"{source.scheme}://{source.host}")
        if source.scheme == "hf":
            return HubPublisher(self._client, str(self._hub), source, token)
        if source.scheme == "https":
            return FolderPublisher(self._client, source, token)
        return BucketPublisher(source, self._bucket_options)

    def _allows_host(self, host: str, port: int) -> bool:
        if self._allowed.allows_host(host, port):
            return True
        if not any(pattern.scheme == "hf" for pattern in self._allowed.sources):
            return False
        if (host, port) == (self._hub.host, self._hub.port or HTTPS_PORT):
            return True
        return self._hub.host == HUB and port == HTTPS_PORT and host.endswith(HUB_STORES)


def _parsed(text: str) -> Source:
    try:
        return parse_source(text)
    except ApiError as error:
        raise ImportFailure(error.code, error.message) from error
