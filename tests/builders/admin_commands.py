"""Every command of `tenfold admin`, with all that it takes: together they send whatever there is.

Knows nothing of what is answered. Invariant: what is in braces is put in by `lines_of`.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

COMMANDS = """
tenant create acme --external-id crm-1 --concurrency 3 --queue-depth 2 --plan gold --base b
    --store-prompts-days 30 --metadata team=support
tenant list
tenant show acme
tenant set acme --external-id crm-2 --all-bases --store-prompts-days 0 --no-metadata --if-match e
tenant suspend acme --if-match e
tenant resume acme --if-match e
tenant delete acme --yes --erase --if-match e
key create acme --name ci --scope inference --scope usage:read --model bot --expires-in-days 7
    --metadata team=support
key list acme
key show acme key_1
key rotate acme key_1 --overlap-hours 1 --if-match e
key disable acme key_1 --if-match e
key delete acme key_1 --yes --if-match e
adapter create bot -t acme --base-model b --description "Of returns." --metadata team=support
adapter list -t acme
adapter show bot -t acme
adapter set bot -t acme --description "" --metadata team=support --if-match e
adapter versions bot -t acme
adapter alias bot prod v2 -t acme --wait 1 --if-match e
adapter push {folder} -t acme --name bot --wait 1 --no-activate --strict --license mit
adapter push {folder} -t acme --name bot --wait 1 --no-activate --strict --license mit
    --resumable
adapter push {folder} -t acme --name bot --upload upl_1
adapter pull bot v1 {out} -t acme
adapter delete bot -t acme --force --drain-s 5 --erase --yes --if-match e
version list bot -t acme
version show bot v1 -t acme --wait 1
version report bot v1 -t acme
version activate bot v1 -t acme --if-match e
version deprecate bot v1 -t acme --date 2099-01-31 --if-match e
version archive bot v1 -t acme --if-match e
version restore bot v1 -t acme --if-match e
version delete bot v1 -t acme --aliases v2 --drain-s 5 --erase --yes --if-match e
version validate {folder} -t acme --name bot --strict
version evaluate bot v1 -t acme
version residency bot v1 -t acme
version preload bot v1 -t acme --replicas 2 --wait 1
version pin bot v1 -t acme --hours 2 --replicas 2 --wait 1
version evict bot v1 -t acme --wait 1
version probe bot v1 "Dear customer," -t acme --max-tokens 8
version probe bot v1 "Where is it?" -t acme --chat
version probe bot v1 -t acme --messages {messages}
alias list bot -t acme
alias show bot prod -t acme
alias set bot prod v2 -t acme --wait 1 --if-match e
alias set bot prod v1=95 v2=5 -t acme --sticky-by user --shadow v3=10
alias history bot prod -t acme
alias rollback bot prod -t acme --to alc_1 --if-match e
alias shadow bot prod -t acme
alias delete bot prod -t acme --yes --if-match e
rollout create bot prod v2 -t acme --ladder 5,100 --soak-s 60 --on-fail pause --sticky-by user
    --gate error_rate:max=0.02 --gate ttft_ms:max_regression_pct=20,window_s=60,min_samples=20
    --gate golden_failure_rate:max=0.1 --golden {golden}
rollout list bot -t acme
rollout show bot rol_1 -t acme
rollout preview bot rol_1 -t acme
rollout pause bot rol_1 -t acme --if-match e
rollout resume bot rol_1 -t acme --if-match e
rollout promote bot rol_1 -t acme --if-match e
rollout cancel bot rol_1 -t acme --if-match e
upload list bot -t acme
upload show bot upl_1 -t acme
upload cancel bot upl_1 -t acme --if-match e
import create bot hf://acme/bot -t acme --sha256 {sha256} --credential-ref hub --no-activate
    --strict --license mit
import list bot -t acme
import show bot imp_1 -t acme
import events bot imp_1 -t acme
import cancel bot imp_1 -t acme --if-match e
erasure list -t acme
erasure show x_01kb7c2v3n8q4r5s6t7v8w9x0y -t acme
event list --after 5 --limit 1
audit list acme
audit heads
audit verify
audit verify acme --kept 42:{sha256}
usage show --days 2 --until 1767225600 --bucket 1h --by tenant --by key --tenant acme
usage show --csv
usage reconcile --days 2 --until 1767225600 --tenant acme --limit 5
price set eur --input 0.15 --output 0.6 --cached 0.1 --base-model b --tenant acme
    --effective-at 1767225600
price list
price show prc_1
price delete prc_1 --yes --if-match e
plan create gold --limit tokens_per_day=9 --weight 2 --reserved-share 0.1 --priority
plan list
plan show gold
plan set gold --limit concurrency=none --weight 2 --reserved-share 0.1 --no-priority --if-match e
plan delete gold --yes --if-match e
plan assign acme gold --dry-run --if-match e
limits show acme
limits show acme --key key_1
limits show acme --adapter bot
limits set acme --limit concurrency=5 --weight 2 --reserved-share 0.1 --priority --dry-run
    --if-match e
limits set acme --key key_1 {subject} --if-match e
limits set acme --adapter bot {subject} --if-match e
explain req_1
request show req_1
"""
SUBJECT = " ".join(
    f"--limit {kind}=1"
    for kind in (
        "requests_per_minute",
        "tokens_per_minute",
        "tokens_per_day",
        "concurrency",
        "tokens_per_month",
        "soft_tokens_per_month",
        "cost_micros_per_month",
        "soft_cost_micros_per_month",
        "dry_run.tokens_per_day",
    )
)

Lines = Sequence[Sequence[str]]


def lines_of(text: str, **values: object) -> list[list[str]]:
    """One command a line, but for those that are indented: they go on with the line before."""
    whole = text.replace("\n    ", " ").strip()
    return [shlex.split(line.format_map(values)) for line in whole.split("\n")]
