"""One module that an adapter adapts, as its manifest lists it. Data only."""

from __future__ import annotations

from dataclasses import dataclass

from lora.safetensors_header import TensorSpan


@dataclass(frozen=True, slots=True)
class LoraModule:
    """One adapted module: `y += scale * B (A x)`. `a` is [rank, in], `b` [out, rank].

    `layer` is -1 for `embed_tokens` (whose x is one-hot) and `lm_head`. `magnitude` [out] is
    DoRA's; `bias` [out] is added within B, so scaled with it. `is_transposed`: A and B are stored
    as [in, rank] and [rank, out].
    """

    layer: int
    module: str
    rank: int
    scale: float
    a: TensorSpan
    b: TensorSpan
    magnitude: TensorSpan | None = None
    bias: TensorSpan | None = None
    is_transposed: bool = False

    @property
    def spans(self) -> tuple[TensorSpan, ...]:
        optional = (self.magnitude, self.bias)
        return (self.a, self.b, *(span for span in optional if span is not None))
