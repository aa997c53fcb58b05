"""How a test states that an adapter is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lora.findings import REFUSALS, Finding
from lora.manifest import AdapterManifest, ManifestError


class Refusal:
    """The error that a `refused` block raised."""

    findings: tuple[Finding, ...] = ()

    @property
    def codes(self) -> set[str]:
        return {finding.code for finding in self.findings if finding.severity == "error"}


@contextmanager
def refused(code: str, *, param: str | None = None) -> Iterator[Refusal]:
    """The block must raise a ManifestError whose code is `code` (and one finding is on `param`)."""
    refusal = Refusal()
    with pytest.raises(ManifestError) as caught:
        yield refusal
    refusal.findings = caught.value.findings
    assert caught.value.code == code, refusal.findings
    assert caught.value.status == REFUSALS[code].status
    if param is not None:
        assert (code, param) in {(found.code, found.param) for found in refusal.findings}


def warnings_of(manifest: AdapterManifest) -> set[str]:
    return {finding.code for finding in manifest.warnings}
