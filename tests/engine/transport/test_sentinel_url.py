"""URLs that name Sentinels. Failovers themselves: tests/chart/test_managed.py."""

from __future__ import annotations

import pytest

from engine.transport.connection import open_async_redis, open_redis
from engine.transport.sentinel import SentinelUrl, names_sentinels


def test_url_names_sentinels_service_and_the_primarys_password() -> None:
    url = "redis+sentinel://me:p%40ss@a:1,b,c.example:3/tenfold/2?sentinel_password=s&socket_timeout=9"
    parsed = SentinelUrl.parse(url)
    assert names_sentinels(url) and not names_sentinels("redis://a:1/0")
    assert parsed.addresses == (("a", 1), ("b", 26379), ("c.example", 3))
    assert (parsed.service, parsed.is_tls) == ("tenfold", False)
    assert parsed.options == {"username": "me", "password": "p@ss", "db": 2, "socket_timeout": 9.0}
    assert parsed.sentinel_options == {"password": "s"}


def test_tls_is_for_sentinel_too() -> None:
    parsed = SentinelUrl.parse("rediss+sentinel://:pw@a/tenfold?ssl_ca_certs=/ca.crt")
    assert parsed.is_tls and parsed.options["db"] == 0
    assert parsed.options["ssl_ca_certs"] == "/ca.crt"
    assert parsed.sentinel_options == {"ssl": True, "ssl_ca_certs": "/ca.crt"}


@pytest.mark.parametrize(
    "url", ["redis+sentinel://a:1", "redis+sentinel:///tenfold", "redis+sentinel://a,,b/tenfold"]
)
def test_url_without_service_or_host_is_refused(url: str) -> None:
    for open_client in (open_redis, open_async_redis):
        with pytest.raises(ValueError, match=r"expected redis\+sentinel|no host"):
            open_client(url, max_connections=1)
