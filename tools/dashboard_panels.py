"""What the chart's dashboards show: each panel's title, unit and queries.

Knows nothing of Grafana's JSON (`tools/dashboards.py`). Invariants: every query is bounded to
`$namespace`, and uses only variables that its dashboard has. The fleet's are in
`tools/fleet_panels.py`.
"""

from __future__ import annotations

from tools.dashboard_model import Dashboard, Panel, quantiles, rate
from tools.fleet_panels import FLEET

TENANT = Dashboard(
    "tenant",
    "Tenfold / Tenant",
    [
        Panel(
            "Requests",
            "reqps",
            [(rate("tenfold_requests_received_total", "tenant"), "{{tenant}}")],
        ),
        Panel(
            "Choices by end",
            "reqps",
            [
                (
                    rate("tenfold_request_success_total", "tenant, finished_reason"),
                    "{{tenant}} {{finished_reason}}",
                )
            ],
        ),
        Panel(
            "Refused",
            "reqps",
            [
                (
                    rate("tenfold_requests_rejected_total", "tenant, reason"),
                    "{{tenant}} {{reason}}",
                )
            ],
        ),
        Panel(
            "Failed",
            "reqps",
            [(rate("tenfold_requests_failed_total", "tenant, reason"), "{{tenant}} {{reason}}")],
        ),
        Panel(
            "Tokens generated a second",
            "short",
            [(rate("tenfold_generation_tokens_total", "tenant"), "{{tenant}}")],
        ),
        Panel(
            "Prompt tokens a second",
            "short",
            [(rate("tenfold_prompt_tokens_total", "tenant"), "{{tenant}}")],
        ),
        Panel(
            "Share of prompt tokens from the cache",
            "percentunit",
            [
                (
                    f"{rate('tenfold_cached_prompt_tokens_total', 'tenant')}"
                    f" / {rate('tenfold_prompt_tokens_total', 'tenant')}",
                    "{{tenant}}",
                )
            ],
        ),
        Panel(
            "Time to first token",
            "s",
            quantiles("tenfold_time_to_first_token_seconds", "tenant"),
        ),
        Panel("Between tokens", "s", quantiles("tenfold_inter_token_latency_seconds", "tenant")),
        Panel("Whole answers", "s", quantiles("tenfold_e2e_request_latency_seconds", "tenant")),
    ],
    ("tenant", "tenfold_requests_received_total", "tenant"),
)
ADAPTER = Dashboard(
    "adapter",
    "Tenfold / Adapters",
    [
        Panel(
            "Adapters by state",
            "short",
            [("sum by (state) (tenfold_adapters{@})", "{{state}}")],
            "Ready: in the pool. Kept: on the host. Queued, loading, loaded: on their way.",
        ),
        Panel(
            "Loads and evictions",
            "ops",
            [
                (rate("tenfold_adapter_loads_total"), "read (cold)"),
                (rate("tenfold_adapter_kept_installs_total"), "from the host"),
                (rate("tenfold_adapter_evictions_total"), "evicted"),
                (rate("tenfold_adapter_load_failures_total"), "failed"),
            ],
        ),
        Panel("Requests' wait for an adapter", "s", quantiles("tenfold_adapter_wait_seconds")),
        Panel(
            "Time of a load",
            "s",
            [
                (
                    f"{rate('tenfold_adapter_load_seconds_total')}"
                    f" / {rate('tenfold_adapter_loads_total')}",
                    "mean",
                )
            ],
        ),
        Panel(
            "Pages of adapters",
            "short",
            [
                ('sum(tenfold_pages{@, kind="adapter"})', "pages"),
            ],
        ),
        Panel(
            "Share of the pool",
            "percentunit",
            [
                (
                    'sum(tenfold_pages{@, kind="adapter"}) / sum(tenfold_pages{@})',
                    "adapters",
                )
            ],
        ),
        Panel(
            "Adapters on the host",
            "bytes",
            [('sum(tenfold_host_tier_bytes{@, kind="adapter"})', "bytes")],
        ),
        Panel(
            "Requests that wait for one",
            "short",
            [("sum(tenfold_num_requests_loading{@})", "requests")],
        ),
        Panel(
            "Uploads that wait for their check",
            "short",
            [("max by (kind) (tenfold_jobs_waiting{@})", "{{kind}}")],
        ),
    ],
)
ENGINE = Dashboard(
    "engine",
    "Tenfold / Engine",
    [
        Panel(
            "Stage",
            "short",
            [("tenfold_engine_stage{@} == 1", "{{instance}} {{stage}}")],
        ),
        Panel(
            "Sequences",
            "short",
            [
                ("sum by (instance) (tenfold_num_requests_running{@})", "{{instance}} running"),
                ("sum by (instance) (tenfold_num_requests_waiting{@})", "{{instance}} waiting"),
                ("sum by (instance) (tenfold_num_requests_loading{@})", "{{instance}} loading"),
                ("sum by (instance) (tenfold_num_requests_swapped{@})", "{{instance}} swapped"),
            ],
        ),
        Panel(
            "Pages by kind",
            "short",
            [("sum by (kind) (tenfold_pages{@})", "{{kind}}")],
        ),
        Panel(
            "Use of the pool",
            "percentunit",
            [("tenfold_kv_cache_usage_ratio{@}", "{{instance}}")],
        ),
        Panel("Step", "s", quantiles("tenfold_engine_step_seconds")),
        Panel(
            "Steps and tokens a second",
            "short",
            [
                (rate("tenfold_engine_steps_total", "instance"), "{{instance}} steps"),
                (
                    rate("tenfold_engine_generation_tokens_total", "instance"),
                    "{{instance}} tokens",
                ),
            ],
        ),
        Panel(
            "Prefix cache: share of tokens found",
            "percentunit",
            [
                (
                    f"{rate('tenfold_prefix_cache_hits_total', 'instance')}"
                    f" / {rate('tenfold_prefix_cache_queries_total', 'instance')}",
                    "{{instance}}",
                )
            ],
        ),
        Panel(
            "Preemptions",
            "ops",
            [
                (rate("tenfold_num_preemptions_total", "instance"), "{{instance}} preempted"),
                (rate("tenfold_swap_outs_total", "instance"), "{{instance}} swapped out"),
                (rate("tenfold_swap_ins_total", "instance"), "{{instance}} swapped in"),
                (
                    rate("tenfold_prefix_cache_evictions_total", "instance"),
                    "{{instance}} blocks evicted",
                ),
            ],
        ),
        Panel(
            "Host memory by kind",
            "bytes",
            [("sum by (kind) (tenfold_host_tier_bytes{@})", "{{kind}}")],
        ),
        Panel(
            "Fairness: most ahead of least served",
            "short",
            [("max by (instance) (tenfold_fairness_spread_tokens{@})", "{{instance}}")],
            "Of tenants that wait, in prompt tokens over weight.",
        ),
        Panel(
            "Requests by end",
            "reqps",
            [
                (
                    rate("tenfold_engine_requests_finished_total", "finished_reason"),
                    "{{finished_reason}}",
                ),
                (rate("tenfold_engine_requests_resumed_total"), "taken over from another"),
            ],
        ),
        Panel(
            "Steps that wait for Redis",
            "short",
            [("max by (instance) (tenfold_unpublished_steps{@})", "{{instance}}")],
        ),
        Panel(
            "Memory of the process",
            "bytes",
            [("process_resident_memory_bytes{@}", "{{instance}}")],
        ),
    ],
    ("engine", "tenfold_engine_stage", "instance"),
)
DASHBOARDS = (FLEET, TENANT, ADAPTER, ENGINE)
