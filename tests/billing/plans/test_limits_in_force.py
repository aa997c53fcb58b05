"""Absent is inherited, null is no limit, 0 lets nothing pass."""

from __future__ import annotations

from typing import Any

import pytest

from app.plans.limits import Kind, Layer, Terms, limits_in_force
from app.plans.schemas import Limits

DEFAULT = {"concurrency": 64}


def in_force(*limits: dict[str, Any]) -> dict[tuple[str, str], tuple[int, str]]:
    """(kind, mode) -> (limit, who set it), with the layers numbered."""
    layers = [Layer(str(i), each) for i, each in enumerate(limits)]
    return {
        (each.kind.value, each.mode): (each.limit, each.source)
        for each in limits_in_force("tenant", "ten_a", layers)
    }


@pytest.mark.parametrize(
    ("plan", "tenant", "expected"),
    [
        ({}, {}, (64, "0")),
        ({"concurrency": 8}, {}, (8, "1")),
        ({"concurrency": 8}, {"concurrency": 9}, (9, "2")),
        ({"concurrency": 8}, {"concurrency": 0}, (0, "2")),
        ({"concurrency": None}, {}, None),
        ({"concurrency": 8}, {"concurrency": None}, None),
        ({"concurrency": None}, {"concurrency": 3}, (3, "2")),
    ],
)
def test_the_last_layer_that_names_a_limit_decides(
    plan: dict[str, Any], tenant: dict[str, Any], expected: tuple[int, str] | None
) -> None:
    assert in_force(DEFAULT, plan, tenant).get(("concurrency", "hard")) == expected


def test_hard_soft_and_dry_run_limits_of_one_kind_are_apart() -> None:
    plan = {"tokens_per_month": 100, "soft_tokens_per_month": 80}
    tenant = {"dry_run": {"tokens_per_month": 50}}
    assert in_force(plan, tenant) == {
        ("tokens_per_month", "hard"): (100, "0"),
        ("tokens_per_month", "soft"): (80, "0"),
        ("tokens_per_month", "dry_run"): (50, "1"),
    }


def test_what_is_stored_tells_null_from_absent() -> None:
    said = {"tokens_per_day": None, "dry_run": {"concurrency": 1}}
    assert Limits.model_validate(said).stored() == said


def test_the_smallest_of_tenant_and_key_is_what_one_request_can_have() -> None:
    limits = [
        *limits_in_force("tenant", "t", [Layer("tenant", {"concurrency": 5})]),
        *limits_in_force("key", "k", [Layer("key", {"concurrency": 2})]),
        *limits_in_force("key", "k", [Layer("key", {"dry_run": {"concurrency": 1}})]),
    ]
    assert Terms(tuple(limits)).smallest(Kind.CONCURRENCY) == 2
    assert Terms().smallest(Kind.CONCURRENCY) is None
