"""What is kept of templates is forgotten when nobody has used it for a while."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from app.chat_templates.kept import Kept
from app.chat_templates.sandbox import TemplateSandbox, TemplateSource
from app.chat_templates.versions import VersionTemplates
from app.errors import UnavailableError
from engine.messages import AdapterRef
from lora.base_spec import BaseSpec
from lora.digest import adapter_digest, hash_file
from lora.store import CHAT_TEMPLATE_FILE, LocalAdapterStore
from tests.builders.adapter_files import adapter_files, write_adapter
from tests.builders.waiting import until
from tests.corpus.templates.conftest import template_processes

HI = [{"role": "user", "content": "Hello"}]
FOR_LONG_S, SOON_S = 60.0, 0.1


async def test_what_was_used_least_lately_goes_first_and_each_is_let_go_of_once() -> None:
    gone: list[int] = []
    kept: Kept[str, int] = Kept(2, FOR_LONG_S, gone.append)
    for number, name in enumerate(("a", "b"), start=1):
        kept.put(name, number)
    assert kept.use("a") == 1 and kept.use("z") is None
    kept.put("c", 3)
    assert gone == [2] and kept.pop("b") is None
    assert kept.pop("c") == 3
    kept.put("a", 4)
    assert gone == [2, 1]
    kept.clear()
    kept.clear()
    assert gone == [2, 1, 4] and len(kept) == 0


async def test_what_nobody_uses_goes_by_itself_and_what_is_used_stays() -> None:
    gone: list[str] = []
    kept: Kept[str, str] = Kept(10, SOON_S, gone.append)
    kept.put("used", "used")
    kept.put("left", "left")
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + 3 * SOON_S
    while loop.time() < ends_at:
        assert kept.use("used") == "used"
        await asyncio.sleep(SOON_S / 20)
    assert gone == ["left"]
    await until(lambda: len(kept) == 0)
    assert gone == ["left", "used"]


async def test_a_template_that_nobody_uses_leaves_no_process() -> None:
    sandbox = TemplateSandbox({}, idle_s=SOON_S)
    for owner in ("ten_a", "ten_b"):
        source = TemplateSource(owner, "sha", "{{ messages[0].content }}")
        assert (await sandbox.render(source, HI, {}, 100)).text == "Hello"
    await until(lambda: template_processes() == [])
    assert (await sandbox.render(source, HI, {}, 100)).text == "Hello"
    await sandbox.close()


@pytest.mark.parametrize("kept_s", [SOON_S, FOR_LONG_S])
async def test_the_text_of_an_erased_version_is_forgotten(
    sandbox: TemplateSandbox, tiny_base: BaseSpec, tmp_path: Path, kept_s: float
) -> None:
    """The control keeps it, and renders what is nowhere any more."""
    files = adapter_files(tiny_base) | {CHAT_TEMPLATE_FILE: b"[{{ messages[0].content }}]"}
    folder = write_adapter(tmp_path / "upload", files)
    rows = [hash_file(folder / name, name) for name in files]
    digest = adapter_digest(rows)
    store = LocalAdapterStore(tmp_path / "store")
    locator = store.put("ten_a", digest, {name: folder / name for name in files})
    adapter = AdapterRef(tenant_id="ten_a", digest=digest, locator=locator)
    (sha256,) = [row.sha256 for row in rows if row.name == CHAT_TEMPLATE_FILE]
    templates = VersionTemplates(store, sandbox, kept_s=kept_s)
    assert await templates.render(adapter, sha256, HI, {}, 100) == "[Hello]"
    store.delete(locator)
    await asyncio.sleep(2 * SOON_S)
    if kept_s == FOR_LONG_S:
        assert await templates.render(adapter, sha256, HI, {}, 100) == "[Hello]"
        return
    with pytest.raises(UnavailableError) as refused:
        await templates.render(adapter, sha256, HI, {}, 100)
    assert refused.value.code == "adapter_missing"
