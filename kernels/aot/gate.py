"""What the machine code of a kernel may not be: slow for a reason that is seen without a GPU.

Knows nothing of how it was compiled. Invariant: a figure that got worse than the recorded budget
is a finding, so that it becomes worse only in a commit whose diff shows it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from kernels.aot.compile import Measurement
from kernels.gpu.launch import AotVariant, round_up

BUDGETS_PATH = Path(__file__).with_name("budgets.json")
# Registers are allocated in eights, shared memory in kibibytes: less than that costs nothing.
_REGISTER_UNIT = 8
_SHARED_UNIT = 1024
_SHARE_DIGITS = 2


@dataclass(frozen=True, slots=True)
class Budget:
    """The worst that is accepted: `registers` and `shared_bytes` at most, the others at least."""

    registers: int
    shared_bytes: int
    blocks_per_sm: int
    wide_share: float

    @classmethod
    def of(cls, measured: Measurement) -> Budget:
        unit = 10**_SHARE_DIGITS
        return cls(
            registers=round_up(measured.registers, _REGISTER_UNIT),
            shared_bytes=round_up(measured.shared_bytes, _SHARED_UNIT),
            blocks_per_sm=measured.blocks_per_sm,
            wide_share=int(measured.wide_share * unit) / unit,
        )


@dataclass(frozen=True, slots=True)
class Budgets:
    """Recorded budgets by `variant@architecture`, for one release of Triton.

    A release that has no record at all is judged by the rules alone.
    """

    of: Mapping[str, Budget]

    @property
    def is_recorded(self) -> bool:
        return bool(self.of)


def budget_key(variant: str, architecture: str) -> str:
    return f"{variant}@{architecture}"


def findings(variant: AotVariant, measured: Measurement) -> Iterator[str]:
    """What no kernel that ships may do, whatever was recorded."""
    if measured.spills or measured.stack_bytes:
        yield f"spills: {measured.spills} LDL/STL, {measured.stack_bytes} bytes of stack"
    if measured.blocks_per_sm < 1:
        yield f"does not fit: {measured.shared_bytes} bytes of shared memory"
    if variant.wants_wide_loads and not measured.wide_loads:
        yield f"no 16-byte load among {measured.loads}: {measured.load_bits}"
    if variant.wants_dot and not measured.tensor_core:
        yield "no tensor-core instruction"
    if variant.forbids_atomics and measured.atomics:
        yield f"{measured.atomics} atomic instructions"


def overruns(measured: Measurement, budget: Budget) -> Iterator[str]:
    if measured.registers > budget.registers:
        yield f"{measured.registers} registers, budget {budget.registers}"
    if measured.shared_bytes > budget.shared_bytes:
        yield f"{measured.shared_bytes} bytes of shared memory, budget {budget.shared_bytes}"
    if measured.blocks_per_sm < budget.blocks_per_sm:
        yield f"{measured.blocks_per_sm} blocks per SM, floor {budget.blocks_per_sm}"
    if measured.wide_share < budget.wide_share:
        share, floor = measured.wide_share, budget.wide_share
        yield f"{share:.0%} of loaded bytes in 16-byte loads, floor {floor:.0%}"


def judge(
    variant: AotVariant, architecture: str, measured: Measurement, budgets: Budgets
) -> list[str]:
    """Every reason to refuse this variant; none when it may ship."""
    found = list(findings(variant, measured))
    budget = budgets.of.get(budget_key(variant.name, architecture))
    if budget is not None:
        found += overruns(measured, budget)
    elif budgets.is_recorded:
        found.append("no budget is recorded: python -m kernels.aot --record")
    return found


def read_budgets(path: Path, release: str) -> Budgets:
    recorded = json.loads(path.read_text()) if path.exists() else {}
    return Budgets({key: Budget(**entry) for key, entry in recorded.get(release, {}).items()})


def record_budgets(path: Path, release: str, measured: Iterable[tuple[str, Measurement]]) -> None:
    """Replaces the budgets of one release of Triton; those of others stay."""
    recorded = json.loads(path.read_text()) if path.exists() else {}
    recorded[release] = {key: asdict(Budget.of(figures)) for key, figures in sorted(measured)}
    lines = [
        f' "{name}": {{\n'
        + ",\n".join(f'  "{key}": {json.dumps(entry)}' for key, entry in entries.items())
        + "\n }"
        for name, entries in sorted(recorded.items())
    ]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
