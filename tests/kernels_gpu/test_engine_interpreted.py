"""The whole engine through the Triton kernels: its tokens are those of the CPU backend.

Everything of a GPU run but the GPU: pages of one buffer, adapters in them, one copy a step, decode
steps padded to a bucket and replayed, ids that stay on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from app.demo.base_model import ensure_base_model
from app.demo.tenants import ADAPTER_FOLDERS
from engine.adapter_key import adapter_key
from engine.config import EngineConfig
from engine.device import HostDevice
from engine.forward_batch import StepLayout
from engine.gpu_runner import GpuRunner
from engine.messages import AdapterRef, EngineRequest
from tests.builders.cut_models import cut_adapter, cut_base
from tests.builders.engines import EngineHarness, make_request, tokens_of
from tests.builders.gpu_engines import InterpretedHarness
from tests.builders.lagging_device import LaggingDevice
from tests.builders.peft_models import VARIANTS, make_adapter, make_tiny_llama
from tests.kernels_gpu.even_dot import rows_alike

NAMES = ("plain", "rslora_all_linear", "patterns")
# Chunks of prompts and decodes share most steps, and 3 rows are padded to 4.
CPU = EngineConfig(pool_bytes=1 << 21, block_size=8, max_num_batched_tokens=12, max_num_seqs=6)
GPU = replace(CPU, backend="gpu")


@dataclass(frozen=True)
class World:
    base: Path
    adapters: dict[str, Path]
    store: Path

    def requests(self, publish: Callable[[Path], AdapterRef]) -> list[EngineRequest]:
        """The base and every adapter, each with a short prompt and one that spans chunks."""
        refs = {None: None, **{name: publish(self.adapters[name]) for name in NAMES}}
        return [
            make_request(
                f"{name} {length}",
                [(7 * length + i) % 100 + 3 for i in range(length)],
                adapter=ref,
                max_tokens=3,
            )
            for length in (5, 14)
            for name, ref in refs.items()
        ]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("interpreted")
    base = make_tiny_llama(root / "base", num_hidden_layers=2)
    adapters = {
        name: make_adapter(base, root / name, seed=seed, **VARIANTS[name])
        for seed, name in enumerate(NAMES)
    }
    adapters["plain, other numbers"] = make_adapter(
        base, root / "other", seed=99, **VARIANTS["plain"]
    )
    return World(base, adapters, root / "store")


@pytest.fixture(scope="module")
def greedy(world: World) -> dict[str, list[int]]:
    """What the CPU backend says."""
    return on_cpu(world)


def on_cpu(world: World) -> dict[str, list[int]]:
    harness = EngineHarness(world.base, world.store, CPU)
    tokens = tokens_of(harness.run(world.requests(harness.publish)))
    harness.close()
    return tokens


@pytest.fixture
def start(world: World) -> Iterator[Callable[..., InterpretedHarness]]:
    started: list[InterpretedHarness] = []

    def start(**options: object) -> InterpretedHarness:
        settings = {"config": GPU, **options}
        started.append(InterpretedHarness(world.base, world.store, **settings))
        return started[-1]

    yield start
    for harness in started:
        harness.close()


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_tokens_of_a_mixed_batch_are_the_cpu_backends(
    world: World,
    greedy: dict[str, list[int]],
    start: Callable[..., InterpretedHarness],
    max_in_flight: int,
) -> None:
    harness = start(max_in_flight=max_in_flight)
    assert tokens_of(harness.run(world.requests(harness.publish))) == greedy
    assert len({tuple(tokens) for tokens in greedy.values()}) > 4, "the adapters say too little"


def test_drawn_tokens_are_the_cpu_backends(
    world: World, start: Callable[..., InterpretedHarness]
) -> None:
    requests = [
        make_request(f"{top_k}", [5, 9, 7], max_tokens=2, temperature=0.8, top_k=top_k, seed=3)
        for top_k in (0, 20)
    ]
    cpu = EngineHarness(world.base, world.store, CPU)
    assert tokens_of(start().run(requests)) == tokens_of(cpu.run(requests))
    cpu.close()


def test_an_adapter_is_not_read_before_its_pages_are_filled_and_nothing_waits_for_it(
    world: World, greedy: dict[str, list[int]], start: Callable[..., InterpretedHarness]
) -> None:
    device = LaggingDevice(lag=4)
    harness = start(device=device, max_in_flight=1)
    ref = harness.publish(world.adapters["plain"])
    prompt = world.requests(harness.publish)[1].prompt_token_ids
    harness.core.add(make_request("plain 5", prompt, adapter=ref, max_tokens=3))
    while not harness.core.residency.ready_keys():
        harness.step()
    installed_at = device.now + device.lag
    while device.now < installed_at:
        assert harness.step() == [] and device.num_waits == 0
        device.now += 1
    assert tokens_of(harness.finish()) == {"plain 5": greedy["plain 5"]}


def test_an_adapter_comes_back_from_the_host_into_other_pages(
    world: World, greedy: dict[str, list[int]], start: Callable[..., InterpretedHarness]
) -> None:
    harness = start()
    residency = harness.core.residency
    refs = [harness.publish(world.adapters[name]) for name in ("plain", "plain, other numbers")]
    prompt = world.requests(harness.publish)[1].prompt_token_ids

    def ask(ref: AdapterRef) -> tuple[list[int], list[int]]:
        tokens = tokens_of(harness.run([make_request("it", prompt, adapter=ref, max_tokens=3)]))
        return tokens["it"], dict(residency.owners())[adapter_key(ref)]

    first, pages = ask(refs[0])
    residency.evict(refs[0])
    ask(refs[1])
    again, other_pages = ask(refs[0])
    assert first == again == greedy["plain 5"] and pages != other_pages
    assert (residency.num_loads, residency.num_kept_installs) == (2, 1)


def test_control_the_bytes_in_an_adapters_pages_decide_its_tokens(
    world: World, greedy: dict[str, list[int]], start: Callable[..., InterpretedHarness]
) -> None:
    harness = start()
    refs = {name: harness.publish(world.adapters[name]) for name in world.adapters}
    prompt = world.requests(harness.publish)[1].prompt_token_ids

    def ask(name: str) -> list[int]:
        request = make_request(name, prompt, adapter=refs[name], max_tokens=3)
        return tokens_of(harness.run([request]))[name]

    other = ask("plain, other numbers")
    assert ask("plain") == greedy["plain 5"] != other
    pages = dict(harness.core.residency.owners())
    pool = harness.gpu.kv_cache.pages
    own, foreign = (pages[adapter_key(refs[name])] for name in ("plain", "plain, other numbers"))
    with torch.inference_mode():
        pool[own] = pool[foreign]
    assert ask("plain") == other


class WrongRowRunner(GpuRunner):
    """Takes a placeholder's token from the row after its own."""

    def _resolve(self, input_ids: Tensor) -> Tensor:
        return super()._resolve(torch.where(input_ids < 0, input_ids - 1, input_ids))


def test_control_a_placeholder_of_the_wrong_row_gives_other_tokens(
    world: World, greedy: dict[str, list[int]], start: Callable[..., InterpretedHarness]
) -> None:
    harness = start(runner=WrongRowRunner)
    tokens = tokens_of(harness.run(world.requests(harness.publish)[:3]))
    assert tokens != {name: greedy[name] for name in tokens}


class RecordingRunner(GpuRunner):
    """Keeps each sampled row's logits by request."""

    def forward(self, layout: StepLayout) -> tuple[Tensor, list[Tensor]]:
        logits, sampling = super().forward(layout)
        for sequence, row in zip(layout.sampling, logits, strict=True):
            self.recorded.setdefault(sequence.request_id, []).append(row.clone())
        return logits, sampling

    @property
    def recorded(self) -> dict[str, list[Tensor]]:
        return self.__dict__.setdefault("_recorded", {})


@pytest.mark.parametrize("batch_invariant", [True, False])
def test_logits_to_the_last_bit_do_not_depend_on_the_batch_where_that_is_asked(
    world: World, start: Callable[..., InterpretedHarness], batch_invariant: bool
) -> None:
    """And its control: otherwise they do."""
    config = replace(GPU, batch_invariant=batch_invariant)
    recorded = []
    for numbers in ((1,), (1, 4, 6)):
        harness = start(config=config, runner=RecordingRunner)
        requests = world.requests(harness.publish)
        with rows_alike():
            harness.run([requests[number] for number in numbers])
        recorded.append(torch.stack(harness.gpu.recorded[requests[1].request_id]))
    assert torch.allclose(*recorded, rtol=1e-4, atol=1e-4)
    assert torch.equal(*recorded) == batch_invariant


class FiniteDevice(HostDevice):
    """A device of 1 GiB, of which a pool may have what is left."""

    def memory(self) -> tuple[int, int] | None:
        return (1 << 29) + (1 << 21), 1 << 30


def test_the_pool_is_what_start_up_finds_free(
    world: World, start: Callable[..., InterpretedHarness]
) -> None:
    harness = start(config=replace(GPU, pool_bytes=None), device=FiniteDevice())
    assert harness.gpu.config.pool_bytes == 1 << 21
    assert harness.gpu.kv_cache.pages.nbytes == harness.core.pool.num_pages * GPU.page_bytes(
        harness.base
    )
    assert len(tokens_of(harness.run([make_request("base", [3, 4, 5])]))["base"]) == 8


def test_the_first_layers_of_smollm2_with_the_demos_adapters(tmp_path: Path) -> None:
    base = ensure_base_model(tmp_path / "whole")
    cut = cut_base(base, tmp_path / "base", 2)
    folders = {
        name: cut_adapter(ADAPTER_FOLDERS / name, tmp_path / name, 2) for name in ("acme", "globex")
    }
    config = EngineConfig(pool_bytes=1 << 24, max_num_seqs=4)
    tokens = []
    for harness in (
        EngineHarness(cut, tmp_path / "store", config),
        InterpretedHarness(cut, tmp_path / "store", replace(config, backend="gpu")),
    ):
        refs = {"base": None, **{name: harness.publish(path) for name, path in folders.items()}}
        requests = [
            make_request(name, list(range(1000, 1016)), adapter=ref, max_tokens=4)
            for name, ref in refs.items()
        ]
        tokens.append(tokens_of(harness.run(requests)))
        harness.close()
    assert tokens[1] == tokens[0]
