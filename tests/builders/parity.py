"""An engine and the oracle over one base: how far each adapter's logits are from PEFT's."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from engine.config import EngineConfig
from engine.messages import AdapterRef
from lora.weights import LoraWeights
from tests.builders.engines import EngineHarness, make_request, tokens_of
from tests.builders.peft_models import Oracle, make_adapter

BASE = "base"
"""The name of the base's own row in a batch."""

# Ids that adapters with trained tokens train: every prompt holds them.
TRAINED = [5, 9, 77, 3]


class Parity:
    """Adapters that PEFT saved on the base in `base`, each under a name."""

    def __init__(
        self,
        folder: Path,
        base: Path,
        config: EngineConfig,
        vocab_size: int,
        *,
        trained: Path | None = None,
        keeps_models: bool = True,
    ) -> None:
        """trained: the model that PEFT trains on and that is the oracle, where it is another.
        keeps_models: the oracle's models stay in memory, one an adapter.
        """
        self._keeps_models = keeps_models
        self.trained = trained or base
        self.oracle = Oracle(self.trained)
        self.harness = EngineHarness(base, folder / "store", config)
        self.folders: dict[str, Path] = {}
        self._folder = folder
        self._refs: dict[str, AdapterRef] = {}
        self._vocab_size = vocab_size
        self._asked: dict[tuple[str | int, ...], Tensor] = {}

    def train(self, name: str, **options: Any) -> None:
        """Let PEFT make an adapter. `options`: `make_adapter`'s."""
        seed = len(self.folders) + 1
        model = self.oracle.fresh()
        folder = make_adapter(self.trained, self._folder / name, seed=seed, model=model, **options)
        self.add(name, folder)

    def add(self, name: str, folder: Path, served: Path | None = None) -> None:
        """An adapter's folder for PEFT, and the one to serve where that is another."""
        self.folders[name] = folder
        self._refs[name] = self.harness.publish(served or folder)

    def ref(self, name: str) -> AdapterRef:
        return self._refs[name]

    def errors(self, names: Iterable[str], max_tokens: int = 4) -> dict[str, float]:
        """Run one request each in one batch; the largest error of a logit, by name.

        A name's prompt is always the same, and the oracle is asked once for the same tokens.
        """
        requests = [
            make_request(
                name,
                self._prompt_of(name),
                adapter=None if name == BASE else self._refs[name],
                max_tokens=max_tokens,
            )
            for name in names
        ]
        self.harness.runner.recorded.clear()
        tokens = tokens_of(self.harness.run(requests))
        found = {}
        for request in requests:
            name, prompt = request.request_id, request.prompt_token_ids
            logits = self._true_logits(name, [*prompt, *tokens[name]])
            difference = self.harness.logits(name) - logits[len(prompt) - 1 : -1]
            found[name] = float(difference.abs().max())
        return found

    def _true_logits(self, name: str, token_ids: list[int]) -> Tensor:
        asked = (name, *token_ids)
        if asked not in self._asked:
            self._asked[asked] = self.oracle.logits(self.folders.get(name), token_ids)
            if not self._keeps_models:
                self.oracle.forget()
        return self._asked[asked]

    def _prompt_of(self, name: str) -> list[int]:
        seed = 0 if name == BASE else 1 + list(self.folders).index(name)
        return self.prompt(seed, 1 + 13 * seed % 40)

    def serve_changed(self, change: Callable[[LoraWeights], LoraWeights]) -> None:
        """From now on, serve what `change` makes of each adapter."""
        residency = self.harness.core.residency
        unchanged = residency.weights
        changed: dict[AdapterRef, LoraWeights] = {}

        def weights(ref: AdapterRef) -> LoraWeights:
            if ref not in changed:
                found = unchanged(ref)
                assert isinstance(found, LoraWeights)
                changed[ref] = change(found)
            return changed[ref]

        # The control: this engine alone is handed changed weights.
        residency.weights = weights  # type: ignore[method-assign]

    def prompt(self, seed: int, length: int) -> list[int]:
        drawn = random.Random(seed).choices(range(3, self._vocab_size), k=length)
        return [*drawn, *TRAINED]

    def close(self) -> None:
        self.harness.close()


def train_all(parity: Parity, variants: Mapping[str, Mapping[str, Any]]) -> None:
    for name, options in variants.items():
        parity.train(name, **options)
