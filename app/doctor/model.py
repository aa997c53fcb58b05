"""Looks at the base model's folder and at the adapter store.

Knows nothing of torch. Invariant: no weights are read, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from app.completions.tokenizer import Tokenizer
from app.doctor.findings import Finding, fail, ok, warn
from app.doctor.machine import look_at_folder
from lora.base_files import BaseFiles
from lora.base_spec import BaseSpec, UnsupportedBaseError
from lora.store import (
    AdapterMissingError,
    AdapterStoreError,
    StoreUnavailableError,
    locator_of,
)
from lora.store_open import open_store

NOWHERE = "sha256:" + "0" * 64
FILE_SCHEME = "file://"


def look_at_model(folder: Path | None, model_id: str | None) -> Iterator[Finding]:
    if folder is None:
        yield fail("model", "TENFOLD_MODEL is not set", "set it to the base model's folder")
        return
    try:
        base = BaseSpec.from_folder(folder, model_id)
    except (UnsupportedBaseError, OSError, ValueError) as error:
        yield fail("model", f"{folder}: {error}", "give the folder of a model of the Llama family")
        return
    yield ok("model", f"{base.model_id}: {base.num_layers} layers, context of {base.max_model_len}")
    yield _tokenizer(folder)
    yield _weights(folder, base)


def _tokenizer(folder: Path) -> Finding:
    try:
        Tokenizer.from_folder(folder)
    except Exception as error:  # the libraries raise what they like
        return fail(
            "tokenizer",
            f"{folder}: {type(error).__name__}",
            "copy tokenizer.json and tokenizer_config.json of the model into its folder",
        )
    return ok("tokenizer", "is read")


def _weights(folder: Path, base: BaseSpec) -> Finding:
    try:
        BaseFiles.from_folder(folder, base)
    except (UnsupportedBaseError, OSError) as error:
        return warn(
            "weights",
            f"not here: {error}",
            "an API needs none; engines do, and a worker where adapters bring whole modules",
        )
    return ok("weights", "safetensors files with all headers")


def look_at_store(url: str | None) -> Iterator[Finding]:
    if url is None:
        yield fail("adapter-store", "TENFOLD_ADAPTER_STORE is not set", "set it")
        return
    try:
        store = open_store(url)
    except ValueError as error:
        yield fail("adapter-store", str(error), "see docs/operations.md for what is supported")
        return
    try:
        store.fetch(locator_of("doctor", NOWHERE))
    except AdapterMissingError:  # as it should be: there is no such adapter
        yield ok("adapter-store", "answers")
    except StoreUnavailableError as error:
        yield fail(
            "adapter-store",
            f"is not there: {error}",
            "mount it, or create it; API, workers and engines must see the same",
        )
        return
    except (AdapterStoreError, OSError) as error:
        yield fail("adapter-store", f"{type(error).__name__}: {error}", "look at the store")
        return
    if "://" not in url or url.startswith(FILE_SCHEME):
        folder = Path(url.removeprefix(FILE_SCHEME))
        yield look_at_folder("adapter-store-disk", folder, "TENFOLD_ADAPTER_STORE")
