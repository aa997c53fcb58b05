"""Tenfold's engine in this process, as a server to compare: no HTTP, no queue, the real rest.

Knows nothing of other servers. Adapters come from a store and load beside the step loop, as in
production; the turn that is not counted brings them in, as PEFT's are before its first.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from bench.workload import Served, Server, Workload
from engine.adapter_loader import AdapterLoader
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import AdapterRef, EngineRequest, SamplingParams
from engine.runners import open_runner
from lora.base_spec import BaseSpec
from lora.digest import adapter_digest, hash_file
from lora.store import CONFIG_FILE, WEIGHTS_FILE, LocalAdapterStore

# Each turn has the same prompts: found in the cache, they would be no comparison.
CPU = EngineConfig(pool_bytes=1 << 30, prefix_caching=False)


def tenfold(
    base: Path,
    adapters: Sequence[Path | None],
    store_folder: Path,
    work: Workload,
    config: EngineConfig = CPU,
) -> Server:
    """An engine that keeps `work.streams` requests in flight until all are answered.

    Request i is for adapter i % len(adapters); None is the base.
    """
    spec = BaseSpec.from_folder(base)
    store = LocalAdapterStore(store_folder)
    refs = [
        None if folder is None else _put(store, f"tenant-{index}", folder)
        for index, folder in enumerate(adapters)
    ]
    runner = open_runner(config, spec, base)
    loader = AdapterLoader(store, spec, runner.base_tensors, prepare=runner.prepare_adapter)
    core = EngineCore(runner.config, spec, runner, loader, engine_id="bench")
    turns = itertools.count()
    return lambda: _serve(core, refs, work, next(turns))


def _put(store: LocalAdapterStore, tenant_id: str, folder: Path) -> AdapterRef:
    files = {name: folder / name for name in (CONFIG_FILE, WEIGHTS_FILE)}
    digest = adapter_digest(hash_file(path) for path in files.values())
    locator = store.put(tenant_id, digest, files)
    return AdapterRef(tenant_id=tenant_id, digest=digest, locator=locator)


def _serve(core: EngineCore, refs: list[AdapterRef | None], work: Workload, turn: int) -> Served:
    sampling = SamplingParams(seed=0, max_tokens=work.output_tokens, temperature=0.0)
    requests = [
        EngineRequest(
            request_id=f"{turn}/{index}",
            tenant_id=ref.tenant_id if (ref := refs[index % len(refs)]) else "base",
            api_id="bench",
            epoch=0,
            prompt_token_ids=prompt,
            sampling=sampling,
            adapter=ref,
        )
        for index, prompt in enumerate(work.prompts())
    ]
    tokens: dict[str, list[int]] = defaultdict(list)
    started_at = time.perf_counter()
    waiting = iter(requests)
    for request in itertools.islice(waiting, work.streams):
        core.add(request)
    while core.has_work:
        for batch in core.step().values():
            for output in batch.outputs:
                if output.error is not None:
                    raise RuntimeError(f"{output.error.code}: {output.error.message}")
                tokens[output.request_id] += output.token_ids
                if output.finish_reason is not None and (refill := next(waiting, None)):
                    core.add(refill)
    seconds = time.perf_counter() - started_at
    return Served(seconds, [tokens[request.request_id] for request in requests])
