"""What a look at one thing has found, and what to do about it.

Knows nothing of how things are looked at. Invariant: whatever is not `ok` or `skip` says what to
do; no finding holds a password or a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["ok", "warn", "fail", "skip"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`check` is a stable name, `todo` an instruction; `skip`: nobody could look, or need to."""

    check: str
    status: Status
    detail: str
    todo: str = ""


def ok(check: str, detail: str) -> Finding:
    return Finding(check, "ok", detail)


def skip(check: str, detail: str) -> Finding:
    return Finding(check, "skip", detail)


def warn(check: str, detail: str, todo: str) -> Finding:
    return Finding(check, "warn", detail, todo)


def fail(check: str, detail: str, todo: str) -> Finding:
    return Finding(check, "fail", detail, todo)


def is_well(findings: Sequence[Finding]) -> bool:
    """Whether Tenfold can be expected to work; warnings do not count."""
    return all(each.status != "fail" for each in findings)


def report(findings: Sequence[Finding]) -> dict[str, Any]:
    """For programs."""
    return {"is_well": is_well(findings), "findings": [asdict(each) for each in findings]}


def lines(findings: Sequence[Finding]) -> list[str]:
    """For people: a line for each finding, and one below it that says what to do."""
    width = max((len(each.check) for each in findings), default=0)
    shown = []
    for each in findings:
        shown.append(f"{each.status:<5} {each.check:<{width}}  {each.detail}")
        if each.todo:
            shown.append(f"{'':<5} {'':<{width}}  -> {each.todo}")
    return shown
