"""Migrations are told whether workers have a database role of their own."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.chart.rendering import containers, environment, pods, render

PARTS = {"host": "db.example", "name": "x"}


def told(preset: str, values: Mapping[str, object]) -> set[object]:
    """What each container that migrates has in its environment."""
    return {
        environment(container).get("TENFOLD_SEPARATE_ROLES")
        for _, _, pod in pods(render(preset, values=dict(values)))
        for container in containers(pod)
        if container["name"] == "migrate"
    }


@pytest.mark.parametrize(
    ("preset", "database", "separate"),
    [
        ("dev-cpu", {}, "true"),
        ("prod", {"workerUrlKey": "worker-url"}, "true"),
        ("prod", {"parts": PARTS | {"workerUser": "tenfold_worker"}}, "true"),
        ("prod", {}, "false"),
        ("prod", {"parts": PARTS}, "false"),
    ],
)
def test_what_only_workers_need_is_theirs_alone_where_they_have_a_role_of_their_own(
    preset: str, database: Mapping[str, object], separate: str
) -> None:
    assert told(preset, {"database": database} if database else {}) == {separate}
