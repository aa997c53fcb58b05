"""What a validator's child process is asked, and what it answers: JSON on its pipes.

Knows nothing of processes. Invariant: a task names every file that may be read for it, and holds
no text of the tenant's.
"""

from __future__ import annotations

from typing import Any

import msgspec

from lora.base_spec import BaseSpec
from lora.findings import Finding
from lora.limits import ManifestLimits

LENGTH_BYTES = 4  # before a task
STATUS_BYTES = 4  # after an answer: how the process ended that gave it
FAILED, OUT_OF_MEMORY = 1, 9
DEADLINE_PER_CPU_S = 4  # wall time for each second of processor time: the machine may be busy


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """Check the adapter whose two files lie in `folder`.

    known_bases: names of other bases, of which it must not be.
    reads_values: every number too. model: the base's folder, where its weights are at hand: copies
    of them are compared.
    memory_bytes: address space beyond what the child has at its start, and beyond what it maps.
    """

    folder: str
    base: BaseSpec
    limits: ManifestLimits
    known_bases: frozenset[str] = frozenset()
    reads_values: bool = False
    model: str | None = None
    cpu_s: int = 20
    memory_bytes: int = 512 << 20


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Every finding, in order. `summary`: what is remembered of an adapter without errors.

    peak_bytes: the most that was resident of the child, what it mapped included; 0 where unknown.
    is_filtered: whether the kernel kept the child from system calls that it has no use for.
    """

    findings: tuple[Finding, ...]
    summary: dict[str, Any] | None = None
    peak_bytes: int = 0
    is_filtered: bool = False

    @property
    def is_accepted(self) -> bool:
        return not any(finding.severity == "error" for finding in self.findings)
