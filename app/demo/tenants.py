"""Sets up the demo's tenants as an operator would: through the public admin REST API.

Knows nothing of how the API is started. Invariant: it may run any number of times; what is there
already stays, and keys from an earlier run are kept while the API still takes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import msgspec

from app.launcher.errors import LauncherError

ADAPTER = "support-bot"
ADAPTER_FOLDERS = Path(__file__).parent / "adapters"
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
TENANTS = ("acme", "globex")
VERIFY_TIMEOUT_S = 60
REQUEST_TIMEOUT_S = 30.0


class DemoTenant(msgspec.Struct, frozen=True, kw_only=True):
    """`models`: what the key may put into `model`."""

    api_key: str
    models: list[str]


class DemoFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `demo.json`. The URLs are the two ports' roots."""

    base_url: str
    admin_url: str
    admin_key: str
    tenants: dict[str, DemoTenant]


def read_demo_file(path: Path) -> DemoFile | None:
    """What an earlier run wrote; None if there was none, or if it cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=DemoFile)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def set_up_tenant(
    admin: Admin, base_url: str, slug: str, adapter_folder: Path, known_key: str | None
) -> DemoTenant:
    """Make the tenant, its adapter and its key unless they are there. Raises LauncherError."""
    admin.ensure(f"/tenants/{slug}", "/tenants", {"slug": slug})
    adapters = f"/tenants/{slug}/adapters"
    adapter = admin.ensure(f"{adapters}/{ADAPTER}", adapters, {"name": ADAPTER})
    version = admin.upload(f"{adapters}/{ADAPTER}/versions", adapter_folder)
    if "prod" not in adapter["aliases"]:
        admin.call("PUT", f"{adapters}/{ADAPTER}/aliases/prod", {"version": version["version"]})
    if known_key is not None and (models := list_models(base_url, known_key)) is not None:
        return DemoTenant(api_key=known_key, models=models)
    created = admin.call("POST", f"/tenants/{slug}/keys", {"name": "demo"})
    models = list_models(base_url, created["secret"])
    if models is None:
        raise LauncherError(f"the API refuses the key that it has just made for {slug}")
    return DemoTenant(api_key=created["secret"], models=models)


def list_models(base_url: str, api_key: str) -> list[str] | None:
    """The ids of the models that the key may use; None if the key is not valid."""
    answer = httpx.get(
        f"{base_url}/v1/models",
        headers={"authorization": f"Bearer {api_key}"},
        timeout=REQUEST_TIMEOUT_S,
        trust_env=False,
    )
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        return None
    return [model["id"] for model in _checked(answer)["data"]]


class Admin:
    """The admin API, as far as the demo needs it. Every method raises LauncherError."""

    def __init__(self, admin_url: str, admin_key: str) -> None:
        self._client = httpx.Client(
            base_url=f"{admin_url}/admin/v1",
            headers={"authorization": f"Bearer {admin_key}"},
            timeout=REQUEST_TIMEOUT_S + VERIFY_TIMEOUT_S,
            trust_env=False,
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def call(self, method: str, path: str, body: Mapping[str, object]) -> Any:
        """The decoded answer."""
        return _checked(self._client.request(method, path, json=body))

    def ensure(self, path: str, collection: str, body: Mapping[str, object]) -> Any:
        """The object at `path`, created in `collection` if it is not there."""
        answer = self._client.get(path)
        if answer.status_code == httpx.codes.NOT_FOUND:
            return self.call("POST", collection, body)
        return _checked(answer)

    def upload(self, path: str, folder: Path) -> Any:
        """The version with these files, once its check is done. Equal bytes are one version."""
        with ExitStack() as stack:
            files = {
                name: (name, stack.enter_context((folder / name).open("rb")))
                for name in ADAPTER_FILES
            }
            version = _checked(
                self._client.post(path, files=files, params={"wait": VERIFY_TIMEOUT_S})
            )
        if version["state"] != "active":
            raise LauncherError(f"{folder} was not accepted: {version['report']}")
        return version


def _checked(answer: httpx.Response) -> Any:
    if not answer.is_success:
        request = f"{answer.request.method} {answer.request.url.path}"
        raise LauncherError(f"{request} was answered {answer.status_code}: {answer.text}")
    return answer.json()
