"""Which base an adapter says it was trained on, and whether that can be this one.

The name is compared and never followed: no path is opened and no address is fetched. Invariant: an
adapter is refused only where its name belongs to another base that is known here; shapes decide
the rest.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from lora.base_spec import BaseSpec
from lora.findings import Findings

_QUANTIZED = re.compile(
    r"(?:bnb|gptq|awq|nf4|fp8|hqq|aqlm|[48]-?bit|int[48])(?:$|[-_./])", re.IGNORECASE
)


def check_base(
    name: str | None, base: BaseSpec, known_bases: Collection[str], findings: Findings
) -> None:
    """Report what the base's name in the configuration says about the fit."""
    if name is not None and _QUANTIZED.search(name):
        findings.warn(
            "trained_on_quantized_base",
            f"trained on {name}; it is served on {base.model_id}",
            param="base_model_name_or_path",
        )
    if name is not None and _is_among(name, base.known_names):
        return
    if name is not None and _is_among(name, known_bases):
        findings.refuse(
            "base_model_mismatch",
            "the adapter belongs to another base model that is known here",
            param="base_model_name_or_path",
            expected=base.model_id,
            actual=name,
        )
        return
    findings.warn(
        "base_model_unverified",
        "no base model is named" if name is None else f"the base {name} is unknown here",
        param="base_model_name_or_path",
    )


def _is_among(name: str, names: Collection[str]) -> bool:
    return name.rstrip("/").casefold() in {each.rstrip("/").casefold() for each in names}
