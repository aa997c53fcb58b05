"""Each line of the specification's list of what must be accepted gives PEFT's logits, in one batch
with others and the base."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.config import EngineConfig
from lora.manifest import read_manifest
from lora.store import CONFIG_FILE, WEIGHTS_FILE
from tests.builders.parity import BASE, Parity
from tests.builders.peft_models import VOCAB_SIZE, make_adapter, make_tiny_llama
from tests.builders.refusals import warnings_of
from tests.corpus.acceptance_rows import ACCEPTED, PLAIN, Accepted, configured, converted_pissa
from tests.corpus.conftest import Verdict

MAX_LOGIT_ERROR = 1e-3
BATCH = 8
CONFIG = EngineConfig(pool_bytes=1 << 30)


class Shelf:
    """The adapters of some rows, trained once where rows differ in their files alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._base = make_tiny_llama(folder / "base")
        self._trained: dict[str, Path] = {}
        self.parity = Parity(folder, self._base, CONFIG, VOCAB_SIZE)

    def add(self, row: Accepted) -> Path:
        """The folder that is served for it."""
        peft = self._train(row)
        served = self._folder / f"served-{len(self.parity.folders)}"
        shutil.copytree(peft, served)
        row.change(served)
        self.parity.add(row.name, peft, served)
        return served

    def _train(self, row: Accepted) -> Path:
        options = dict(row.trained)
        key = repr(options)
        if key not in self._trained:
            number, model = len(self._trained) + 1, self.parity.oracle.fresh()
            folder = self._folder / f"trained-{number}"
            if options.pop("converted", None):
                self._trained[key] = converted_pissa(model, folder)
            else:
                made = make_adapter(self._base, folder, seed=number, model=model, **options)
                self._trained[key] = made
        return self._trained[key]

    def warnings(self, served: Path) -> set[str]:
        config = (served / CONFIG_FILE).read_bytes()
        return warnings_of(read_manifest(config, served / WEIGHTS_FILE, self.parity.harness.base))


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    made = Shelf(tmp_path)
    yield made
    made.parity.close()


@pytest.mark.filterwarnings("ignore")
def test_whatever_must_be_accepted_gives_pefts_logits(shelf: Shelf, verdict: Verdict) -> None:
    names = [row.name for row in ACCEPTED]
    assert len(set(names)) == len(names)
    for row in ACCEPTED:
        found = shelf.warnings(shelf.add(row))
        assert row.warning is None or row.warning in found, (row.name, found)
    errors: dict[str, float] = {}
    for start in range(0, len(names), BATCH):
        errors |= shelf.parity.errors([BASE, *names[start : start + BATCH]], max_tokens=3)
    wrong = {name: error for name, error in errors.items() if not error < MAX_LOGIT_ERROR}
    for name in names:
        verdict("accepted and PEFT-equal", name not in wrong)
    assert wrong == {}


@pytest.mark.filterwarnings("ignore")
def test_control_what_is_served_at_another_scale_is_noticed(shelf: Shelf) -> None:
    shelf.add(Accepted("as trained"))
    shelf.add(Accepted("at twice the scale", change=configured(lora_alpha=2 * PLAIN["lora_alpha"])))
    errors = shelf.parity.errors(["as trained", "at twice the scale"])
    assert errors["as trained"] < MAX_LOGIT_ERROR < errors["at twice the scale"] / 10
