"""Where the base's own tensors lie in its folder. Torch-free.

Knows nothing of what they are for. Invariant: reads headers alone, with the parser that reads
adapters' (`lora.safetensors_header`); a folder that changes afterwards is not noticed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from lora.base_spec import BaseSpec, UnsupportedBaseError
from lora.findings import Findings
from lora.limits import ManifestLimits
from lora.safetensors_header import TensorSpan, read_header
from lora.sites import EMBED_TOKENS, LM_HEAD, NORM, ModuleKey

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"

# The operator's own file: a large model's header is longer than an adapter may have.
_LIMITS = replace(ManifestLimits(), max_header_bytes=256 << 20, max_tensors=2_000_000)


@dataclass(frozen=True, slots=True)
class BaseFiles:
    """Tensors of a checkpoint of the Llama family by their names there."""

    spans: dict[str, tuple[Path, TensorSpan]]
    tie_word_embeddings: bool

    @classmethod
    def from_folder(cls, folder: Path, base: BaseSpec) -> BaseFiles:
        """Read the headers of the folder's safetensors files.

        Raises:
            UnsupportedBaseError: they are missing or malformed.
        """
        spans: dict[str, tuple[Path, TensorSpan]] = {}
        for path in weight_files(folder):
            findings = Findings(path.name)
            found = read_header(path, _LIMITS, findings)
            if found is None:
                raise UnsupportedBaseError(f"{path}: {findings.all()[0].message}")
            spans |= {span.name: (path, span) for span in found}
        return cls(spans, base.tie_word_embeddings)

    def find(self, key: ModuleKey, kind: str) -> tuple[Path, TensorSpan] | None:
        """The file and the place of a module's "weight" or "bias"; None where it has none."""
        if key == LM_HEAD and self.tie_word_embeddings:
            key = EMBED_TOKENS
        return self.spans.get(f"{_path(key)}.{kind}")


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that hold the model in `folder`.

    Raises:
        UnsupportedBaseError: there are none.
    """
    index = folder / INDEX_FILE
    if index.is_file():
        names = set(json.loads(index.read_text())["weight_map"].values())
        return [folder / Path(name).name for name in sorted(names)]
    if not (folder / SINGLE_FILE).is_file():
        raise UnsupportedBaseError(f"{folder} has no {SINGLE_FILE}")
    return [folder / SINGLE_FILE]


def _path(key: ModuleKey) -> str:
    layer, module = key
    if key == LM_HEAD:
        return module
    return f"model.{module}" if key in (EMBED_TOKENS, NORM) else f"model.layers.{layer}.{module}"
