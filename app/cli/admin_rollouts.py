"""`tenfold admin rollout ...`: an alias goes over to another version in steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.admin_client import (
    AdapterName,
    IfMatch,
    Json,
    TenantOption,
    adapter_path,
    answer,
    client_of,
    fail,
    meant_for,
    show,
    show_json,
)

COLUMNS = ("id", "alias", "from_version_id", "to_version_id", "state", "share", "etag")
GATES = ("metric", "verdict", "candidate", "baseline", "num_candidate", "num_baseline", "reason")
WHOLE = ("window_s", "min_samples")

CHANGES = {
    "pause": "Stay at the step that is reached.",
    "resume": "Go on with a rollout that is paused; its step begins anew.",
    "promote": "End a rollout by moving the alias as a whole, whatever the gates say.",
    "cancel": "End a rollout by moving the alias back.",
}

RolloutId = Annotated[str, typer.Argument(metavar="ROLLOUT")]

rollout = typer.Typer(
    name="rollout", help="Move aliases step by step, while gates pass.", no_args_is_help=True
)


@rollout.command("create")
def create(
    context: typer.Context,
    name: AdapterName,
    alias: Annotated[str, typer.Argument(metavar="ALIAS")],
    to: Annotated[str, typer.Argument(metavar="VERSION", help="Where the alias is to go.")],
    tenant: TenantOption,
    ladder: Annotated[
        str | None,
        typer.Option(help="Its share at each step, in percent.", show_default="5,25,50,100"),
    ] = None,
    soak_s: Annotated[
        int | None,
        typer.Option(min=0, help="Seconds that a step lasts at least.", show_default="600"),
    ] = None,
    gate: Annotated[
        list[str] | None,
        typer.Option(
            help="error_rate:max=0.02, or ttft_ms:max_regression_pct=20,window_s=3600,"
            "min_samples=200; repeatable."
        ),
    ] = None,
    golden: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="Golden prompts, a JSON object a line, as eval.jsonl; for a gate of "
            "golden_failure_rate.",
        ),
    ] = None,
    on_fail: Annotated[
        str | None, typer.Option(help="rollback or pause.", show_default="rollback")
    ] = None,
    sticky_by: Annotated[
        str | None, typer.Option(help="Equal values of this field stay at one version.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Begin to move an alias to another version."""
    given = {
        "ladder": None if ladder is None else _ladder(ladder),
        "soak_s": soak_s,
        "gates": None if gate is None else [_gate(each) for each in gate],
        "golden": None if golden is None else _prompts(golden),
        "on_fail": on_fail,
        "sticky_by": sticky_by,
    }
    body: dict[str, Any] = {"alias": alias, "to": to}
    body |= {field: value for field, value in given.items() if value is not None}
    begun = client_of(context).call("POST", adapter_path(tenant, name, "rollouts"), json=body)
    answer(begun, COLUMNS, as_json=as_json)


@rollout.command("list")
def list_(
    context: typer.Context, name: AdapterName, tenant: TenantOption, as_json: Json = False
) -> None:
    """List an adapter's rollouts."""
    rows = list(client_of(context).list_all(adapter_path(tenant, name, "rollouts")))
    answer(rows, COLUMNS, as_json=as_json)


@rollout.command("show")
def show_one(
    context: typer.Context,
    name: AdapterName,
    rollout_id: RolloutId,
    tenant: TenantOption,
    as_json: Json = False,
) -> None:
    """Show one rollout, and its verdict if it has one."""
    found = client_of(context).call("GET", adapter_path(tenant, name, "rollouts", rollout_id))
    answer(found, (*COLUMNS, "verdict"), as_json=as_json)


@rollout.command("preview")
def preview(
    context: typer.Context,
    name: AdapterName,
    rollout_id: RolloutId,
    tenant: TenantOption,
    as_json: Json = False,
) -> None:
    """What a rollout would do now, and what each of its gates says."""
    path = adapter_path(tenant, name, "rollouts", rollout_id, "preview")
    found = client_of(context).call("GET", path)
    if as_json:
        show_json(found)
        return
    show([{**found["rollout"], "next": found["next"]}], (*COLUMNS, "next"))
    gates = [{**each, "metric": each.get("gate", {}).get("metric")} for each in found["gates"]]
    show(gates, GATES)


def _changes(verb: str) -> Callable[..., None]:
    """The command that does `verb` to a rollout."""

    def change(
        context: typer.Context,
        name: AdapterName,
        rollout_id: RolloutId,
        tenant: TenantOption,
        if_match: IfMatch = None,
        as_json: Json = False,
    ) -> None:
        path = adapter_path(tenant, name, "rollouts", rollout_id, verb)
        changed = client_of(context).call("POST", path, headers=meant_for(if_match))
        answer(changed, COLUMNS, as_json=as_json)

    return change


for _verb, _help in CHANGES.items():
    rollout.command(_verb, help=_help)(_changes(_verb))


def _ladder(option: str) -> list[int]:
    try:
        return [int(share) for share in option.split(",")]
    except ValueError:
        fail(f"{option}: expected shares in percent, such as 5,25,50,100")


def _gate(option: str) -> Mapping[str, Any]:
    """`<metric>:<name>=<number>,...` as the API takes it."""
    metric, _, rest = option.partition(":")
    gate: dict[str, Any] = {"metric": metric}
    for pair in rest.split(","):
        name, _, text = pair.partition("=")
        try:
            gate[name] = int(text) if name in WHOLE else float(text)
        except ValueError:
            fail(f"{option}: expected <metric>:<name>=<number>, ..., such as error_rate:max=0.02")
    return gate


def _prompts(path: Path) -> list[Any]:
    try:
        return [json.loads(line) for line in path.read_bytes().split(b"\n") if line.strip()]
    except ValueError as error:
        fail(f"{path}: expected one JSON object a line: {error}")
