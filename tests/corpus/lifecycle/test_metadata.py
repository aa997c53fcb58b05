"""An adapter carries labels of its owner's own, within bounds; they and its description change."""

from __future__ import annotations

from app.bodies import MAX_LABELS
from tests.builders.operator import Operator, Tenant
from tests.corpus.lifecycle.conftest import BOT

ADAPTERS = "/tenants/acme/adapters"
REFUSED: list[object] = [
    {str(number): "x" for number in range(MAX_LABELS + 1)},
    {"a": 1},
    {"a": "x" * 513},
    {"a": "\x00"},
    {"": "x"},
    ["a"],
]


async def test_an_adapters_metadata_is_shown_wherever_it_is_and_bounded(
    operator: Operator, acme: Tenant
) -> None:
    labels = {"team": "support", "crm": "4711"}
    made = await operator.done("POST", ADAPTERS, json={"name": "labelled", "metadata": labels})
    read = await operator.done("GET", f"{ADAPTERS}/labelled")
    listed = (await operator.done("GET", ADAPTERS))["data"]
    assert made["metadata"] == read["metadata"] == labels
    assert [row["metadata"] for row in listed] == [{}, labels]
    assert (await operator.done("GET", BOT))["metadata"] == {}, "the control"
    again = await operator.done("PATCH", f"{ADAPTERS}/labelled", json={"description": "Answers."})
    assert (again["description"], again["metadata"]) == ("Answers.", labels)
    again = await operator.done("PATCH", f"{ADAPTERS}/labelled", json={"metadata": {}})
    assert (again["description"], again["metadata"]) == ("Answers.", {})
    assert again == await operator.done("GET", f"{ADAPTERS}/labelled")
    for refused in REFUSED:
        patched = await operator.call("PATCH", BOT, json={"metadata": refused})
        assert patched.status_code == 400, refused
        body = {"name": "other", "metadata": refused}
        answer = await operator.call("POST", ADAPTERS, json=body)
        assert answer.status_code == 400, refused
        assert answer.json()["error"]["param"].startswith("metadata")
