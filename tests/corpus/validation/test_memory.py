"""What checking a large adapter costs: the API's memory does not grow with it, a child's little.

Files here are sparse: they have their length, and take no room on the disk.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from app.adapters.validator import Validator
from lora.base_spec import BaseSpec
from lora.limits import DEFAULT_LIMITS
from lora.store import CONFIG_FILE, WEIGHTS_FILE
from tests.builders.adapter_files import adapter_config, adapter_files
from tests.builders.adapters import TINY_BASE, plain_config
from tests.builders.operator import OPERATOR
from tests.builders.peak_memory import Peak
from tests.fixtures.processes import ApiProcess

MIB = 1 << 20
NUM_MEASURED = 3
MAX_API_GROWTH = 8 * MIB
MAX_CHILD = 64 * MIB
NUM_DATA = 96 * MIB
VERSIONS = "/tenants/acme/adapters/bot/versions"
UPLOADS = "/tenants/acme/adapters/bot/uploads"
LARGE_BASE = replace(
    TINY_BASE,
    hidden_size=4096,
    intermediate_size=14336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
)
RANK = 64


def large_adapter(folder: Path) -> int:
    """Rank 64 on every linear module of an 8B base, all zero; its bytes."""
    header: dict[str, object] = {}
    position = 0
    for layer in range(LARGE_BASE.num_layers):
        for module, (num_in, num_out) in LARGE_BASE.linear_modules().items():
            prefix = f"base_model.model.model.layers.{layer}.{module}"
            for side, shape in (("lora_A", (RANK, num_in)), ("lora_B", (num_out, RANK))):
                end = position + 2 * shape[0] * shape[1]
                header[f"{prefix}.{side}.weight"] = {
                    "dtype": "BF16",
                    "shape": list(shape),
                    "data_offsets": [position, end],
                }
                position = end
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / CONFIG_FILE).write_text(
        json.dumps(plain_config(r=RANK, lora_alpha=RANK, target_modules="all-linear"))
    )
    with (folder / WEIGHTS_FILE).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + position)
    return 8 + len(text) + position


async def test_a_child_takes_little_beside_what_it_maps(tmp_path: Path) -> None:
    num_bytes = large_adapter(tmp_path / "adapter")
    assert num_bytes > 250 * MIB
    validator = Validator()
    structure = await validator.check_structure(tmp_path / "adapter", LARGE_BASE, DEFAULT_LIMITS)
    assert structure.is_accepted, structure.findings
    assert 0 < structure.peak_bytes <= MAX_CHILD, structure.peak_bytes / MIB
    values = await validator.check_values(
        tmp_path / "adapter", LARGE_BASE, DEFAULT_LIMITS, model=None
    )
    assert [found.code for found in values.findings] == ["no_effect"]
    assert 0 < values.peak_bytes <= num_bytes + MAX_CHILD, values.peak_bytes / MIB


@pytest.mark.timeout(600)
def test_an_upload_costs_the_api_little_memory(
    api_process: ApiProcess, tiny_base: BaseSpec
) -> None:
    """Whole, in parts, and four at once. What a thread keeps of the first that it had a hand in is
    not counted: what an upload costs it costs each time.
    """
    url = f"{api_process.admin_url}/admin/v1"
    process = psutil.Process(api_process.process.pid)
    with httpx.Client(base_url=url, headers=OPERATOR, timeout=120) as admin:
        admin.post("/tenants", json={"slug": "acme"}).raise_for_status()
        admin.post("/tenants/acme/adapters", json={"name": "bot"}).raise_for_status()
        for seed in (1, 2):
            files = {
                name: (name, data) for name, data in adapter_files(tiny_base, seed=seed).items()
            }
            admin.post(VERSIONS, files=files).raise_for_status()
        for send, num_at_once in ((_send_whole, 1), (_send_in_parts, 1), (_send_whole, 4)):
            _send_together(send, admin, num_at_once)
            growths = []
            for _ in range(NUM_MEASURED):
                before = process.memory_info().rss
                with Peak(process) as peak:
                    _send_together(send, admin, num_at_once)
                growths.append((peak.rss - before) / num_at_once / MIB)
            assert min(growths) <= MAX_API_GROWTH / MIB, (send, num_at_once, growths)


def test_control_growth_would_be_seen() -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    # Fresh pages: not those that the process had before, and let go.
    with mmap.mmap(-1, 64 * MIB) as held, Peak(process) as peak:
        for page in range(0, len(held), mmap.PAGESIZE):
            held[page] = 1
    assert peak.rss - before > MAX_API_GROWTH


Send = Callable[[httpx.Client], httpx.Response]


def _send_together(send: Send, admin: httpx.Client, num: int) -> None:
    """Files that are no adapter of this base, so many at once; each is refused for what it is."""
    with ThreadPoolExecutor(num) as pool:
        for response in pool.map(send, [admin] * num):
            assert response.status_code == 422, response.text
            assert response.json()["error"]["code"] == "tensor_unexpected"


def _send_whole(admin: httpx.Client) -> httpx.Response:
    """A multipart body that is made while it is sent."""
    line = "line"

    def body() -> Iterator[bytes]:
        for name, content in ((CONFIG_FILE, [adapter_config()]), (WEIGHTS_FILE, _pieces())):
            yield f'--{line}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode()
            yield from content
            yield b"\r\n"
        yield f"--{line}--\r\n".encode()

    headers = {"content-type": f"multipart/form-data; boundary={line}"}
    return admin.post(VERSIONS, content=body(), headers=headers)


def _send_in_parts(admin: httpx.Client) -> httpx.Response:
    """What completing is answered."""
    files = {CONFIG_FILE: adapter_config(), WEIGHTS_FILE: b"".join(_pieces())}
    declared = [
        {"path": path, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for path, data in files.items()
    ]
    upload: dict[str, Any] = admin.post(UPLOADS, json={"files": declared}).json()
    num_parts = 0
    for file in upload["files"]:
        for part in file["parts"]:
            content = files[file["path"]][(part["n"] - 1) * file["part_size"] :][: part["bytes"]]
            url = admin.base_url.copy_with(path=part["url"])
            admin.put(url, content=content).raise_for_status()
            num_parts += 1
    assert num_parts > NUM_DATA // (16 * MIB)
    return admin.post(f"{UPLOADS}/{upload['id']}/complete")


def _pieces() -> Iterator[bytes]:
    """A safetensors file with one large tensor, which no base has."""
    entry = {"dtype": "F32", "shape": [NUM_DATA // 4], "data_offsets": [0, NUM_DATA]}
    text = json.dumps({"score.weight": entry}).encode()
    yield len(text).to_bytes(8, "little") + text
    yield from [bytes(MIB)] * (NUM_DATA // MIB)
