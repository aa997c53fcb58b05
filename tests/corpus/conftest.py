"""The corpus's verdict: how many adapters were refused as expected, served as PEFT does, or wrong.

Knows nothing of the adapters; a tenant is here for whoever sends some. Invariant: what is printed
last counts every case that ran, in whichever process it did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.builders.operator import Operator, Tenant

PROPERTY = "adapters"
LONGEST = "test_mutants.py"
KINDS = ("refused as expected", "accepted and PEFT-equal", "wrong")
Verdict = Callable[[str, bool], None]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, so that no process is left alone with it."""
    items.sort(key=lambda item: item.path.name != LONGEST)


@pytest.fixture
async def acme(operator: Operator) -> Tenant:
    """With an adapter, `bot`, that has no version yet."""
    tenant = await operator.new_tenant("acme")
    await operator.new_adapter("acme", "bot")
    return tenant


@pytest.fixture
def verdict(request: pytest.FixtureRequest) -> Verdict:
    """Count a case of a kind; one that is not as it should be is wrong."""
    counts = dict.fromkeys(KINDS, 0)
    request.node.user_properties.append((PROPERTY, counts))

    def count(kind: str, is_right: bool) -> None:
        assert kind in KINDS
        counts[kind if is_right else "wrong"] += 1

    return count


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts: Counter[str] = Counter()
    for report in (*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")):
        if report.when == "call":
            for name, value in report.user_properties:
                if name == PROPERTY:
                    counts.update(value)
    words = " / ".join(f"{counts[kind]} {kind}" for kind in KINDS)
    terminalreporter.write_line(f"corpus: {words}")
