"""Asks web servers that tenants name, and none that an operator does not allow.

Knows nothing of adapters. Invariants: only https, only to hosts that are allowed, only to addresses
that `addresses` let pass, also after a redirect; the connection goes to the very address that was
judged, while the certificate is checked for the name; a token goes to the host that it was given
for and to no other; no proxy, no cookie and no unpacking stands between.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urljoin

import httpx

from app.imports.addresses import Network, Resolver, pin_address
from app.imports.errors import ImportFailure, not_allowed, source_failed
from app.imports.sources import HTTPS_PORT

MAX_REDIRECTS = 5
MAX_URL_CHARS = 4096
TIMEOUT = httpx.Timeout(connect=10.0, read=30.0, write=10.0, pool=10.0)
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True)
class Place:
    """A web server, as a URL names it."""

    host: str
    port: int

    @property
    def header(self) -> str:
        return self.host if self.port == HTTPS_PORT else f"{self.host}:{self.port}"


class GuardedClient:
    """allows: whether (host, port) may be asked. networks: private ones that may be reached."""

    def __init__(
        self,
        allows: Callable[[str, int], bool],
        resolve: Resolver,
        networks: tuple[Network, ...],
        trust: ssl.SSLContext,
    ) -> None:
        self._allows = allows
        self._resolve = resolve
        self._networks = networks
        self._trust = trust

    @asynccontextmanager
    async def get(self, url: str, *, token: str | None = None) -> AsyncIterator[httpx.Response]:
        """The answer, with status 200, whose body has not been read. Raises ImportFailure."""
        first = _place_of(url)
        async with httpx.AsyncClient(
            verify=self._trust, trust_env=False, timeout=TIMEOUT, follow_redirects=False
        ) as client:
            for _ in range(MAX_REDIRECTS + 1):
                place = _place_of(url)
                sent = token if place == first else None
                try:
                    response = await client.send(
                        await self._request(client, url, place, sent), stream=True
                    )
                except httpx.HTTPError as error:
                    raise _broken(place, error) from error
                if response.status_code in _REDIRECTS:
                    location = response.headers.get("location", "")
                    await response.aclose()
                    url = _redirected(url, location)
                    client.cookies.clear()
                    continue
                try:
                    _check_status(response, place)
                    yield response
                except httpx.HTTPError as error:
                    raise _broken(place, error) from error
                finally:
                    await response.aclose()
                return
        raise ImportFailure(
            "import_too_many_redirects", f"More than {MAX_REDIRECTS} redirects were met."
        )

    async def _request(
        self, client: httpx.AsyncClient, url: str, place: Place, token: str | None
    ) -> httpx.Request:
        if not self._allows(place.host, place.port):
            raise not_allowed(f"https://{place.header}")
        address = await pin_address(place.host, place.port, self._resolve, self._networks)
        headers = {"host": place.header, "accept-encoding": "identity"}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        return client.build_request(
            "GET",
            httpx.URL(url).copy_with(host=address, port=place.port, fragment=None),
            headers=headers,
            extensions={"sni_hostname": place.host},
        )


def _redirected(url: str, location: str) -> str:
    """Raises ImportFailure for a `location` that is none."""
    try:
        return urljoin(url, location)
    except ValueError as error:
        raise source_failed("A redirect leads to what is no URL.") from error


def _place_of(url: str) -> Place:
    """Raises ImportFailure for what may not be asked, whoever allows it."""
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as error:
        raise source_failed("A redirect leads to what is no URL.") from error
    if parsed.scheme != "https" or not parsed.host or parsed.userinfo or len(url) > MAX_URL_CHARS:
        raise not_allowed("a URL other than https://host/path")
    return Place(parsed.host.lower().rstrip("."), parsed.port or HTTPS_PORT)


def _check_status(response: httpx.Response, place: Place) -> None:
    status = response.status_code
    if status == 200:
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise source_failed(f"{place.header} sends what would have to be unpacked.")
        return
    if status in (401, 403):
        raise ImportFailure(
            "import_source_unauthorized", f"{place.header} answered {status}: it wants a token."
        )
    if status in (404, 410):
        raise ImportFailure("import_source_not_found", f"{place.header} answered {status}.")
    raise ImportFailure(
        "import_source_failed",
        f"{place.header} answered {status}.",
        is_temporary=status == 429 or status >= 500,
    )


def _broken(place: Place, error: httpx.HTTPError) -> ImportFailure:
    return source_failed(f"{place.header}: {type(error).__name__}.")
