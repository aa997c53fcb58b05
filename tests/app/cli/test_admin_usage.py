"""`tenfold admin usage` and `price`, against the real process."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from app.cli.admin import admin
from tests.builders.ledger import Ledger
from tests.builders.operator import ADMIN_KEY
from tests.builders.usage import new_request
from tests.fixtures.processes import ApiProcess


async def test_an_operator_sees_usage_prices_it_and_reconciles(
    api_process: ApiProcess, ledger: Ledger
) -> None:
    def done(*arguments: str, exit_code: int = 0) -> str:
        environment = {"TENFOLD_ADMIN_URL": api_process.admin_url, "TENFOLD_ADMIN_KEY": ADMIN_KEY}
        result = CliRunner().invoke(admin, arguments, env=environment)
        assert result.exit_code == exit_code, result.output
        return result.stdout

    await ledger.serve(new_request("req_a"), 10)
    price = json.loads(done("price", "set", "usd", "--input", "0.5", "--output", "2", "--json"))
    assert price["id"] in done("price", "list")
    assert json.loads(done("price", "show", price["id"], "--json")) == price
    done("price", "delete", price["id"], "--yes", exit_code=1)  # it is in force

    table = done("usage", "show", "--days", "1", "--bucket", "1h", "--by", "key")
    assert "key_a" in table and "output_tokens" in table
    assert "key_a" in done("usage", "show", "--by", "key", "--csv")
    assert "ledger" in done("usage", "reconcile")
    await ledger.rows("DELETE FROM usage_outbox")
    assert "not_exported" in done("usage", "reconcile", exit_code=1)
