"""Adapters from the store to weights, on threads of their own: never on the step loop.

Loads what is certified, or on trial: then a few of its modules are measured on the way
(`engine/module_check.py`). Checks the digest of what it reads; the runner's `prepare` puts it into
the device's form, here too, since that takes long. What is missing or damaged is fetched once more;
if that does not help it is a result, not an exception: it fails the requests for that adapter and
nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread

import structlog

from engine.adapter_key import AdapterKey, adapter_key
from engine.adapter_weights import HostWeights
from engine.messages import AdapterRef, EngineError, ModuleFigure
from engine.module_check import check_modules, sampled_modules
from engine.residency import LoadResult
from engine.transport.certificates import UNCERTIFIED
from lora.base_copies import check_against_base
from lora.base_spec import BaseSpec
from lora.base_tensors import BaseTensors
from lora.digest import adapter_digest, hash_file
from lora.manifest import AdapterManifest, ManifestError, read_manifest
from lora.store import (
    ADAPTER_FILES,
    CONFIG_FILE,
    WEIGHTS_FILE,
    AdapterMissingError,
    AdapterStore,
    AdapterStoreError,
    StoreUnavailableError,
)
from lora.variants import VariantError
from lora.weights import LoraWeights, load_weights

log = structlog.get_logger()

MISSING = EngineError(code="adapter_missing", message="The adapter's files cannot be found.")
CORRUPT = EngineError(code="adapter_corrupt", message="The adapter's files are damaged.")
FAILED = EngineError(code="adapter_load_failed", message="The adapter could not be loaded.")

CLOSE_TIMEOUT_S = 5.0
MAX_FIGURES = 256  # adapters whose figures are remembered


class AdapterLoader:
    """Loads adapters in the background; `on_completed` is called from a loader thread."""

    def __init__(
        self,
        store: AdapterStore,
        base: BaseSpec,
        base_tensors: BaseTensors,
        *,
        prepare: Callable[[LoraWeights], HostWeights] = lambda weights: weights,
        num_threads: int = 2,
        on_completed: Callable[[], None] = lambda: None,
        admits: Callable[[AdapterRef], bool] = lambda ref: True,
    ) -> None:
        """admits: whether an adapter may be loaded; not asked of one that is on trial."""
        self._admits = admits
        self._figures: dict[AdapterKey, tuple[ModuleFigure, ...]] = {}
        self._remembering = Lock()
        self._store = store
        self._base = base
        self._base_tensors = base_tensors
        self._prepare = prepare
        self._on_completed = on_completed
        self._completed: SimpleQueue[LoadResult] = SimpleQueue()
        self._wanted: SimpleQueue[AdapterRef | None] = SimpleQueue()
        self._threads = [
            Thread(target=self._work, name=f"adapter-loader-{number}", daemon=True)
            for number in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, ref: AdapterRef) -> None:
        """Begin to load; the result comes out of `take_completed`."""
        # NOTE: a pool of threads would wait here for a new one to run, and so for its turn.
        self._wanted.put(ref)

    def take_completed(self) -> list[LoadResult]:
        results = []
        while True:
            try:
                results.append(self._completed.get_nowait())
            except Empty:
                return results

    def figures_of(self, ref: AdapterRef) -> tuple[ModuleFigure, ...] | None:
        """What was measured when `ref` was last loaded on trial, if it was lately."""
        return self._figures.get(adapter_key(ref))

    def close(self) -> None:
        """Wait a while for the loads under way; drop those that have not begun.

        A read that hangs is left alone: its thread ends with the process.
        """
        with suppress(Empty):
            while True:
                self._wanted.get_nowait()
        for _ in self._threads:
            self._wanted.put(None)
        for thread in self._threads:
            thread.join(timeout=CLOSE_TIMEOUT_S)

    def _work(self) -> None:
        while (ref := self._wanted.get()) is not None:
            self._run(ref)

    def _run(self, ref: AdapterRef) -> None:
        self._completed.put(self._load(ref))
        self._on_completed()

    def _load(self, ref: AdapterRef) -> LoadResult:
        try:
            if not (ref.is_on_trial or self._admits(ref)):
                log.error("adapter_uncertified", digest=ref.digest)
                return LoadResult(ref, weights=None, error=UNCERTIFIED)
            return self._read_twice(ref)
        except (AdapterMissingError, StoreUnavailableError, FileNotFoundError):
            error = MISSING
        except (AdapterStoreError, ManifestError, OSError):
            error = CORRUPT
        except VariantError:
            error = FAILED
        except Exception:  # a loader thread that died would leave its requests waiting for ever
            log.exception("adapter_load_crashed", digest=ref.digest)
            error = FAILED
        log.warning("adapter_load_failed", digest=ref.digest, code=error.code)
        return LoadResult(ref, weights=None, error=error)

    def _read_twice(self, ref: AdapterRef) -> LoadResult:
        try:
            return self._read(ref, anew=False)
        except (AdapterStoreError, OSError) as error:
            log.warning("adapter_refetched", digest=ref.digest, cause=type(error).__name__)
            return self._read(ref, anew=True)

    def _read(self, ref: AdapterRef, *, anew: bool) -> LoadResult:
        started_at = time.perf_counter()
        folder = self._store.fetch(ref.locator, anew=anew)
        files = [path for path in folder.iterdir() if path.name in ADAPTER_FILES]
        found = adapter_digest(hash_file(path) for path in files)
        if found != ref.digest:
            raise AdapterStoreError(f"files of {ref.digest} hash to {found}")
        weights = self._prepare(self._load_weights(folder, ref))
        return LoadResult(ref, weights, seconds=time.perf_counter() - started_at)

    def _load_weights(self, folder: Path, ref: AdapterRef) -> LoraWeights:
        path = folder / WEIGHTS_FILE
        manifest = read_manifest((folder / CONFIG_FILE).read_bytes(), path, self._base)
        if findings := check_against_base(path, manifest, self._base_tensors.files):
            raise ManifestError(findings)
        weights = load_weights(manifest, path, self._base, self._base_tensors)
        if ref.is_on_trial:
            self._measure(ref, manifest, path, weights)
        return weights

    def _measure(
        self, ref: AdapterRef, manifest: AdapterManifest, path: Path, weights: LoraWeights
    ) -> None:
        modules = sampled_modules(manifest, ref.digest)
        figures = check_modules(modules, path, weights, self._base, self._base_tensors)
        with self._remembering:
            while len(self._figures) >= MAX_FIGURES:
                del self._figures[next(iter(self._figures))]
            self._figures[adapter_key(ref)] = figures
