"""`tenfold admin plan`, `limits` and `explain`, against a real API process."""

from __future__ import annotations

import json
from typing import Any

from tests.app.cli.test_admin import Command, run

__all__ = ["run"]


def test_an_operator_sells_a_plan_and_bends_it_from_the_command_line(run: Command) -> None:
    def done(*arguments: str) -> Any:
        result = run(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    done("tenant", "create", "acme")
    key = done("key", "create", "acme")
    done("plan", "create", "gold", "--limit", "tokens_per_day=1000", "--weight", "2")
    terms = ("--limit", "tokens_per_day=900", "--limit", "concurrency=none")
    done("plan", "set", "gold", *terms, "--reserved-share", "0.25")
    assert done("plan", "show", "gold")["reserved_share"] == 0.25
    assert [row["limits"] for row in done("plan", "list")] == [
        {"tokens_per_day": 900, "concurrency": None}
    ]
    done("plan", "assign", "acme", "gold")
    limit = ("--limit", "dry_run.requests_per_minute=5")
    would_be = done("limits", "set", "acme", *limit, "--reserved-share", "0.5", "--dry-run")
    assert would_be["reserved_share"] == 0.5
    assert would_be["limits"] == {"dry_run": {"requests_per_minute": 5}}
    shown = done("limits", "show", "acme")
    assert (shown["plan"], shown["limits"], shown["weight"]) == ("gold", {}, 1.0)
    assert {each["kind"]: each["source"] for each in shown["in_force"]} == {
        "tokens_per_day": "plan:gold",
        "queue_depth": "default",
    }
    path = ("limits", "set", "acme", "--key", key["id"])
    put = done(*path, "--limit", "concurrency=1")
    assert put["limits"] == {"concurrency": 1}
    again = (*path, "--limit", "concurrency=2", "--if-match", put["etag"])
    assert done(*again)["limits"] == {"concurrency": 2}
    assert "412 etag_mismatch" in run(*again).stderr

    assert run(*path, "--limit", "concurrency=one").exit_code == 1
    assert "409 plan_in_use" in run("plan", "delete", "gold", "--yes").stderr
    assert "of tenants" in run(*path, "--reserved-share", "0.5").stderr
    done("plan", "assign", "acme", "none")
    done("plan", "delete", "gold", "--yes")
    assert run("explain", "req_01kb7c2v3n8q4r5s6t7v8w9x0y").exit_code == 1
