"""`python -m app.adapters.values_child`: as `validator_child`, and reads every number as well.

Knows nothing of who asks. Invariant: NumPy and all that it wants are loaded before the process is
confined.
"""

from __future__ import annotations

import mmap  # noqa: F401 (NumPy imports it with the first file that it maps)
from pathlib import Path

from app.adapters.validator_child import run
from lora.base_copies import check_against_base
from lora.base_files import BaseFiles
from lora.findings import Finding
from lora.manifest import AdapterManifest
from lora.values import check_values


def main() -> None:
    run(_check)


def _check(weights: Path, manifest: AdapterManifest, base_files: BaseFiles | None) -> list[Finding]:
    findings = check_values(weights, manifest)
    if base_files is not None:
        findings += check_against_base(weights, manifest, base_files)
    return findings


if __name__ == "__main__":
    main()
