"""No import reaches what it may not: by name, by address, by redirect, or by a changed answer."""

from __future__ import annotations

import pytest

from app.encryption import SealBrokenError
from app.errors import ApiError
from app.imports.addresses import parse_networks, pin_address
from app.imports.errors import ImportFailure
from app.imports.publishers import Publishers
from app.imports.sources import AllowList, Source, parse_source
from app.imports.tokens import TokenSealer
from app.settings import Settings
from tests.builders.https_server import HttpsServer, Redirect
from tests.builders.operator import Operator, Tenant
from tests.corpus.imports.conftest import IMPORTS, LOOPBACK, Importing, Names

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"

FORBIDDEN = [
    "127.0.0.1",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "255.255.255.255",
    "192.0.2.1",
    "192.0.0.1",
    "192.0.0.192",
    "192.88.99.1",
    "168.63.129.16",
    "::1",
    "::",
    "fe80::1",
    "fec0::1",
    "feff::1",
    "3fff::1",
    "5f00::1",
    "fd00:ec2::254",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:168.63.129.16",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
    "2001:0:7f00:1::",
    "::127.0.0.1",
]


async def pin(*addresses: str, allowed: str = "") -> str:
    async def resolve(host: str, port: int) -> list[str]:
        return list(addresses)

    return await pin_address("a.test", 443, resolve, parse_networks(allowed))


@pytest.mark.parametrize("address", FORBIDDEN)
async def test_an_address_that_is_not_of_the_public_internet(address: str) -> None:
    with pytest.raises(ImportFailure) as refused:
        await pin(address)
    assert refused.value.code == "import_address_forbidden"
    with pytest.raises(ImportFailure):  # nor beside one that is
        await pin("93.184.216.34", address)


async def test_control_a_public_address_is_let_through() -> None:
    assert await pin("93.184.216.34") == "93.184.216.34"
    assert await pin("2606:2800:220:1::1") == "2606:2800:220:1::1"
    assert await pin("2606:2800:220:1::1", "93.184.216.34", "93.184.216.35") == "93.184.216.34"
    for beside in ("192.0.1.1", "168.63.129.17", "192.88.98.1"):
        assert await pin(beside) == beside
    assert await pin("10.1.2.3", allowed="10.1.0.0/16") == "10.1.2.3"
    assert await pin("168.63.129.16", allowed="168.63.129.16/32") == "168.63.129.16"
    with pytest.raises(ImportFailure):
        await pin("10.2.2.3", allowed="10.1.0.0/16")


async def test_a_name_without_an_address_may_have_one_later() -> None:
    with pytest.raises(ImportFailure) as failed:
        await pin()
    assert failed.value.is_temporary


async def test_a_name_that_means_something_else_a_moment_later_changes_nothing(
    importing: Importing, names: Names, models: HttpsServer, files: dict[str, bytes]
) -> None:
    """DNS rebinding: every connection is to the address that was judged for it."""
    models.publish("bots/one", files)
    names.answers["models.test"] = [[LOOPBACK], [LOOPBACK], [LOOPBACK], ["10.0.0.9"]]
    job = await importing.run(f"{models.url}/bots/one")
    assert job["state"] == "succeeded"
    assert names.asked == ["models.test"] * 3  # once for each file, and not once more

    job = await importing.run(f"{models.url}/bots/one")  # the control: now it means 10.0.0.9
    assert job["error"]["code"] == "import_address_forbidden"


async def test_a_redirect_to_a_host_that_is_not_allowed_is_not_followed(
    importing: Importing, models: HttpsServer, stranger: HttpsServer, files: dict[str, bytes]
) -> None:
    stranger.publish("bots/one", files)
    models.publish("bots/one", files)
    models.published[f"/bots/one/{WEIGHTS}"] = Redirect(f"{stranger.url}/bots/one/{WEIGHTS}")
    job = await importing.run(f"{models.url}/bots/one")
    assert job["error"]["code"] == "import_source_not_allowed"
    assert stranger.asked == []


@pytest.mark.parametrize(
    "target",
    [
        "http://models.test/x",
        "http://169.254.169.254/latest/meta-data/",
        "https://169.254.169.254/latest/meta-data/",
        "https://user:secret@models.test/x",
        "file:///etc/passwd",
        "ftp://models.test/x",
        "//stranger.test/x",
        "https://models.test.stranger.test/x",
        "https://[::1]/x",
    ],
)
async def test_a_redirect_to_what_is_no_allowed_url(
    importing: Importing, models: HttpsServer, target: str
) -> None:
    models.published[f"/bots/one/{CONFIG}"] = Redirect(target)
    job = await importing.run(f"{models.url}/bots/one")
    assert job["state"] == "failed"
    assert job["error"]["code"] == "import_source_not_allowed"
    assert len(models.asked) == 1


async def test_a_redirect_to_what_is_no_url_is_the_sources_failure(
    settings: Settings, names: Names, models: HttpsServer
) -> None:
    publisher = Publishers(settings, names.resolve).open(f"{models.url}/bots/one", None)
    for target in ("https://[", "//[", "https://a]b/", "http://[x]/", "https://xn--\xff/"):
        models.published[f"/bots/one/{CONFIG}"] = Redirect(target)
        with pytest.raises(ImportFailure) as failed:
            async with publisher.open(CONFIG, None):
                pass
        assert (failed.value.code, failed.value.is_temporary) == ("import_source_failed", True)


async def test_a_redirect_within_what_is_allowed_is_followed_and_judged_again(
    importing: Importing, names: Names, models: HttpsServer, files: dict[str, bytes]
) -> None:
    models.publish("elsewhere", files)
    for name in files:
        models.published[f"/bots/one/{name}"] = Redirect(f"/elsewhere/{name}")
    assert (await importing.run(f"{models.url}/bots/one"))["state"] == "succeeded"

    names.answers["models.test"] = [[LOOPBACK], ["192.168.0.1"]]
    job = await importing.run(f"{models.url}/bots/one")
    assert job["error"]["code"] == "import_address_forbidden"


async def test_redirects_without_end_end(importing: Importing, models: HttpsServer) -> None:
    models.published[f"/bots/one/{CONFIG}"] = Redirect(f"/bots/one/{CONFIG}")
    job = await importing.run(f"{models.url}/bots/one")
    assert job["error"]["code"] == "import_too_many_redirects"
    assert len(models.asked) == 6


async def test_a_server_that_cannot_show_who_it_is_is_not_asked(
    settings: Settings, names: Names, stranger: HttpsServer
) -> None:
    """What answers at the address has a certificate of another name."""
    codes = []
    for host in ("models.test", "stranger.test"):
        source = f"https://{host}:{stranger.port}"
        allowing = settings.model_copy(update={"import_allow": source})
        publisher = Publishers(allowing, names.resolve).open(f"{source}/bots/one", None)
        with pytest.raises(ImportFailure) as failed:
            async with publisher.open(CONFIG, None):
                pass
        codes.append((failed.value.code, len(stranger.asked)))
    assert codes == [("import_source_failed", 0), ("import_source_not_found", 1)]


@pytest.mark.parametrize(
    "source",
    [
        "",
        "bot",
        "http://models.test/bots/one",
        "ftp://models.test/x",
        "file:///etc/passwd",
        "https://user@models.test/x",
        "https://models.test/x?y=z",
        "https://models.test/x#y",
        "https://models.test/../x",
        "https://models.test/x/./y",
        "https://models.test//x",
        "https://models.test",
        "https://models.test\\@evil.test/x",
        "https://models.test/x y",
        "https://MODELS.test/x",
        "https://[::1]/x",
        "https://models.test:port/x",
        "hf://org",
        "hf://org/repo/file",
        "hf://../repo",
        "hf://org/repo@../main",
        "hf://org/repo@",
        "s3://",
        "s3://bucket/../other",
        "s3://user:key@bucket/x",
        "gs://Bucket/x",
        "hf://org/repo\n",
        "hf://org/" + "a" * 2000,
    ],
)
def test_what_is_no_source(source: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_source(source)
    assert (refused.value.status, refused.value.code) == (422, "import_source_invalid")


def test_what_is_a_source() -> None:
    assert parse_source("hf://org/repo@refs/pr/1") == Source(
        "hf", "org", "repo", revision="refs/pr/1"
    )
    assert parse_source("https://models.test:8443/a/b/") == Source(
        "https", "models.test", "a/b", port=8443
    )
    assert parse_source("s3://bucket/a.b/c_d") == Source("s3", "bucket", "a.b/c_d")


@pytest.mark.parametrize(
    ("pattern", "source", "is_allowed"),
    [
        ("hf://*", "hf://org/repo", True),
        ("hf://org", "hf://org/repo", True),
        ("hf://org/repo", "hf://org/repo@v1", True),
        ("hf://org", "hf://organ/repo", False),
        ("hf://org/repo", "hf://org/repository", False),
        ("https://models.test", "https://models.test/a/b", True),
        ("https://models.test/a", "https://models.test/a/b", True),
        ("https://models.test/a", "https://models.test/ab", False),
        ("https://models.test", "https://models.test:8443/a", False),
        ("https://models.test:8443", "https://models.test:8443/a", True),
        ("https://*.test", "https://models.test/a", True),
        ("https://*.test", "https://models.test.evil/a", False),
        ("https://*.models.test", "https://evilmodels.test/a", False),
        ("s3://bucket/a", "s3://bucket/a/b", True),
        ("s3://bucket/a", "s3://bucket/b", False),
        ("s3://bucket", "gs://bucket/a", False),
        ("", "hf://org/repo", False),
    ],
)
def test_what_an_allow_list_allows(pattern: str, source: str, is_allowed: bool) -> None:
    assert AllowList.parse(pattern).allows(parse_source(source)) is is_allowed


@pytest.mark.parametrize("pattern", ["*", "models.test", "http://x.test", "https://x.test/../y"])
def test_an_allow_list_that_means_nothing_is_no_allow_list(pattern: str) -> None:
    with pytest.raises(ValueError, match="allows nothing"):
        AllowList.parse(pattern)


async def test_a_source_that_is_not_allowed_is_refused_at_once(
    operator: Operator, acme: Tenant
) -> None:
    for source in ("hf://other-org/bot", "https://stranger.test/x", "s3://bucket/x"):
        response = await operator.call("POST", IMPORTS, json={"source": source})
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (403, "import_source_not_allowed")


def test_a_sealed_token_opens_for_its_own_import_alone() -> None:
    secret = "an-old-secret-of-16"
    old, new = TokenSealer(secret), TokenSealer(f"a-new-secret-of-16,{secret}")
    sealed = old.seal("imp_1", "token")
    assert b"token" not in sealed and new.open("imp_1", sealed) == "token"
    with pytest.raises(SealBrokenError):
        new.open("imp_2", sealed)
    with pytest.raises(SealBrokenError):
        old.open("imp_1", new.seal("imp_1", "token"))
