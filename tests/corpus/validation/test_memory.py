"""What checking a large adapter costs: the API's memory does not grow with it, a child's little.

Files here are sparse: they have their length, and take no room on the disk.
"""

from __future__ import annotations

import json
import mmap
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import psutil

from app.adapters.validator import Validator
from lora.base_spec import BaseSpec
from lora.limits import DEFAULT_LIMITS
from lora.store import CONFIG_FILE, WEIGHTS_FILE
from tests.builders.adapter_files import adapter_config, adapter_files
from tests.builders.adapters import TINY_BASE, plain_config
from tests.builders.operator import OPERATOR
from tests.fixtures.processes import ApiProcess

MIB = 1 << 20
MAX_API_GROWTH = 8 * MIB
MAX_CHILD = 64 * MIB
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


def test_an_upload_costs_the_api_little_memory(
    api_process: ApiProcess, tiny_base: BaseSpec
) -> None:
    """The second of two uploads of 200 MiB: what the first left warm is not counted again."""
    url = f"{api_process.admin_url}/admin/v1"
    with httpx.Client(base_url=url, headers=OPERATOR, timeout=120) as admin:
        admin.post("/tenants", json={"slug": "acme"}).raise_for_status()
        admin.post("/tenants/acme/adapters", json={"name": "bot"}).raise_for_status()
        for seed in (1, 2):
            files = {
                name: (name, data) for name, data in adapter_files(tiny_base, seed=seed).items()
            }
            admin.post("/tenants/acme/adapters/bot/versions", files=files).raise_for_status()
        assert _send_large(admin) == "tensor_unexpected"
        process = psutil.Process(api_process.process.pid)
        before = process.memory_info().rss
        with _Peak(process) as peak:
            assert _send_large(admin) == "tensor_unexpected"
    assert peak.rss - before <= MAX_API_GROWTH, (peak.rss - before) / MIB


def test_control_growth_would_be_seen() -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    # Fresh pages: not those that the process had before, and let go.
    with mmap.mmap(-1, 64 * MIB) as held, _Peak(process) as peak:
        for page in range(0, len(held), mmap.PAGESIZE):
            held[page] = 1
    assert peak.rss - before > MAX_API_GROWTH


def _send_large(admin: httpx.Client) -> str:
    """A file of 200 MiB that is no adapter of this base; the code that it is refused under."""
    num_data = 200 * MIB
    entry = {"dtype": "F32", "shape": [num_data // 4], "data_offsets": [0, num_data]}
    text = json.dumps({"score.weight": entry}).encode()
    head = len(text).to_bytes(8, "little") + text
    line = "line"

    def body() -> Iterator[bytes]:
        for name, content in ((CONFIG_FILE, [adapter_config()]), (WEIGHTS_FILE, None)):
            yield f'--{line}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode()
            yield from content or [head, *[bytes(MIB)] * (num_data // MIB)]
            yield b"\r\n"
        yield f"--{line}--\r\n".encode()

    headers = {"content-type": f"multipart/form-data; boundary={line}"}
    response = admin.post("/tenants/acme/adapters/bot/versions", content=body(), headers=headers)
    assert response.status_code == 422, response.text
    return str(response.json()["error"]["code"])


class _Peak:
    """The largest resident set of a process while the block runs, looked at every 5 ms."""

    def __init__(self, process: psutil.Process) -> None:
        self.rss = 0
        self._process = process
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> _Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._look_once()
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(0.005):
            self._look_once()

    def _look_once(self) -> None:
        self.rss = max(self.rss, self._process.memory_info().rss)
