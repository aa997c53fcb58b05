"""A whole engine in process: real model, pool, loader and store; no queue between.

After every step the books are checked; the KV storage starts out as NaN, and what becomes free is
NaN again, so that whatever reads a page it should not read is seen.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from engine.adapter_loader import AdapterLoader
from engine.adapter_weights import HostWeights
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.forward_batch import ForwardBatch
from engine.messages import AdapterRef, EngineRequest, SamplingParams, TokenOutput
from engine.model_runner import ModelRunner
from lora.base_spec import BaseSpec
from lora.digest import adapter_digest, hash_file
from lora.store import ADAPTER_FILES, AdapterStore, LocalAdapterStore
from lora.weights import LoraWeights

PATIENCE_S = 200.0


class RecordingRunner(ModelRunner):
    """The real runner; keeps each sampled row's logits by request."""

    def __init__(self, config: EngineConfig, base: BaseSpec, folder: Path) -> None:
        super().__init__(config, base, folder)
        self.recorded: dict[str, list[Tensor]] = defaultdict(list)

    def forward(self, batch: ForwardBatch) -> Tensor:
        logits = super().forward(batch)
        for sequence, row in zip(batch.sampling, logits, strict=True):
            self.recorded[sequence.request_id].append(row.clone())
        return logits


class EngineHarness:
    """Add requests, run until all have ended, look at tokens and logits."""

    def __init__(
        self,
        base_folder: Path,
        store_folder: Path,
        config: EngineConfig,
        runner: type[RecordingRunner] = RecordingRunner,
        *,
        loader: type[AdapterLoader] = AdapterLoader,
        prepare: Callable[[LoraWeights], HostWeights] = lambda weights: weights,
        seen_through: Callable[[AdapterStore], AdapterStore] = lambda store: store,
    ) -> None:
        """seen_through: what the loader sees of the store."""
        config = replace(config, debug_poison_pages=True)
        self.base = BaseSpec.from_folder(base_folder)
        self.store = LocalAdapterStore(store_folder)
        self.runner = runner(config, self.base, base_folder)
        self.runner.kv_cache.poison()
        self.loader = loader(
            seen_through(self.store), self.base, self.runner.base_tensors, prepare=prepare
        )
        self.core = EngineCore(config, self.base, self.runner, self.loader, "engine-under-test")

    def publish(self, folder: Path, tenant_id: str = "ten_a") -> AdapterRef:
        """Put an adapter's files into the store, as an accepted upload is."""
        files = {path.name: path for path in folder.iterdir() if path.name in ADAPTER_FILES}
        digest = adapter_digest(hash_file(path) for path in files.values())
        locator = self.store.put(tenant_id, digest, files)
        return AdapterRef(tenant_id=tenant_id, digest=digest, locator=locator)

    def run(self, requests: Iterable[EngineRequest]) -> dict[str, list[TokenOutput]]:
        """Add all at once and step until every one has ended."""
        for request in requests:
            self.core.add(request)
        return self.finish()

    def finish(self) -> dict[str, list[TokenOutput]]:
        outputs: dict[str, list[TokenOutput]] = defaultdict(list)
        deadline = time.monotonic() + PATIENCE_S
        while self.core.has_work:
            assert time.monotonic() < deadline, "the engine did not finish"
            for output in self.step():
                outputs[output.request_id].append(output)
        return outputs

    def step(self) -> list[TokenOutput]:
        batches = self.core.step()
        self.core.check_integrity()
        return [output for batch in batches.values() for output in batch.outputs]

    def close(self) -> None:
        self.loader.close()

    def logits(self, request_id: str) -> Tensor:
        """[number of tokens sampled, V]."""
        return torch.stack(self.runner.recorded[request_id])


def make_request(
    request_id: str,
    prompt: list[int],
    *,
    adapter: AdapterRef | None = None,
    max_tokens: int = 8,
    tenant_id: str = "ten_a",
    **sampling: float | int | tuple[int, ...],
) -> EngineRequest:
    """A greedy request unless `sampling` says otherwise."""
    params = {"seed": 0, "temperature": 0.0, **sampling}
    return EngineRequest(
        request_id=request_id,
        tenant_id=tenant_id,
        api_id="api",
        epoch=1,
        prompt_token_ids=prompt,
        adapter=adapter,
        sampling=SamplingParams(max_tokens=max_tokens, **params),
    )


def tokens_of(outputs: Mapping[str, list[TokenOutput]]) -> dict[str, list[int]]:
    """Each request's tokens, in order, after checking that they came in order."""
    tokens: dict[str, list[int]] = {}
    for request_id, parts in outputs.items():
        got: list[int] = []
        for part in parts:
            assert part.error is None, part.error
            assert part.index == len(got)
            got += part.token_ids
        assert parts[-1].finish_reason is not None
        assert parts[-1].num_generated_tokens == len(got)
        tokens[request_id] = got
    return tokens
