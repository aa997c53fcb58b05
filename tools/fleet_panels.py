"""The dashboard of the whole fleet.

Invariant: every query is bounded to `$namespace`.
"""

from __future__ import annotations

from tools.dashboard_model import Dashboard, Panel, quantiles, rate

FLEET = Dashboard(
    "fleet",
    "Tenfold / Fleet",
    [
        Panel(
            "Requests by status",
            "reqps",
            [
                (
                    "sum by (status) (rate(tenfold_http_requests_total"
                    '{@, route=~".*/(chat/)?completions"}[$__rate_interval]))',
                    "{{status}}",
                )
            ],
            "Inference alone.",
        ),
        Panel(
            "Errors by code",
            "reqps",
            [(rate("tenfold_http_errors_total", "code"), "{{code}}")],
        ),
        Panel(
            "Refused by reason",
            "reqps",
            [(rate("tenfold_requests_rejected_total", "reason"), "{{reason}}")],
            "By a limit, for load, or for want of a dependency.",
        ),
        Panel("Time to first token", "s", quantiles("tenfold_time_to_first_token_seconds")),
        Panel("Between tokens", "s", quantiles("tenfold_inter_token_latency_seconds")),
        Panel("Whole answers", "s", quantiles("tenfold_e2e_request_latency_seconds")),
        Panel(
            "Tokens a second",
            "short",
            [
                (rate("tenfold_generation_tokens_total"), "generated"),
                (rate("tenfold_prompt_tokens_total"), "prompt"),
                (rate("tenfold_cached_prompt_tokens_total"), "prompt, cached"),
            ],
        ),
        Panel(
            "Queue",
            "short",
            [
                ("max(tenfold_queued_requests{@})", "requests"),
                ("max(tenfold_leased_requests{@})", "at engines"),
            ],
        ),
        Panel(
            "Oldest wait",
            "s",
            [("max(tenfold_queue_oldest_wait_seconds{@})", "oldest request")],
        ),
        Panel("Wait in the queue", "s", quantiles("tenfold_request_queue_time_seconds")),
        Panel(
            "Processes",
            "short",
            [
                ("count by (process) (tenfold_build_info{@})", "{{process}}"),
                ("max(tenfold_engines{@})", "engines with a heartbeat"),
            ],
        ),
        Panel(
            "Dependencies",
            "short",
            [("min by (dependency) (tenfold_dependency_up{@})", "{{dependency}}")],
            "1: answers every API process in time.",
        ),
        Panel(
            "Ledger lag",
            "s",
            [
                ("max(tenfold_ledger_lag_seconds{@})", "oldest record"),
                ("max(tenfold_exports_oldest_wait_seconds{@})", "oldest export"),
                ("max by (kind) (tenfold_jobs_oldest_wait_seconds{@})", "oldest job: {{kind}}"),
            ],
        ),
        Panel(
            "Ledger",
            "short",
            [
                (rate("tenfold_ledger_records_total"), "records written a second"),
                ("max(tenfold_ledger_lag_records{@})", "records waiting"),
                ("max(tenfold_exports_waiting{@})", "exports waiting"),
                ("sum(max by (kind) (tenfold_jobs_waiting{@}))", "jobs waiting"),
            ],
        ),
        Panel(
            "What does not balance",
            "short",
            [
                ("max by (kind) (tenfold_reconcile_differences{@})", "{{kind}}"),
                (rate("tenfold_ledger_records_refused_total", "reason"), "refused: {{reason}}"),
                (rate("tenfold_requests_swept_total"), "ended for dead API processes"),
            ],
        ),
        Panel(
            "Batches",
            "short",
            [
                ("sum(tenfold_batches_running{@})", "running"),
                ("max(tenfold_batches_waiting{@})", "due, and run by no worker"),
                (rate("tenfold_batches_ended_total", "outcome"), "{{outcome}} a second"),
            ],
        ),
        Panel(
            "Lines of batches",
            "short",
            [
                ("sum(tenfold_batch_lines_running{@})", "running"),
                ("sum(tenfold_batch_lines_waiting{@})", "waiting"),
                (rate("tenfold_batch_lines_answered_total", "outcome"), "{{outcome}} a second"),
            ],
            "Of batches that workers run.",
        ),
        Panel(
            "Oldest batch",
            "s",
            [("max(tenfold_batches_oldest_wait_seconds{@})", "due, and run by no worker")],
        ),
    ],
)
