"""What a dashboard of the chart is made of: panels with queries.

Knows nothing of Grafana's JSON (`tools/dashboards.py`), nor of which panels there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Panel:
    """`queries`: (PromQL, legend). `@` in a query stands for the dashboard's selectors."""

    title: str
    unit: str
    queries: Sequence[tuple[str, str]]
    about: str = ""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """`variable`: (name, the metric and label that list its values), beside the namespace."""

    name: str
    title: str
    panels: Sequence[Panel]
    variable: tuple[str, str, str] | None = None

    @property
    def selectors(self) -> str:
        chosen = 'namespace=~"$namespace"'
        if self.variable is None:
            return chosen
        name, _, label = self.variable
        return f'{chosen}, {label}=~"${name}"'


def quantiles(metric: str, by: str = "") -> list[tuple[str, str]]:
    """The 50th, 95th and 99th percentile of a histogram."""
    labels = f"le, {by}" if by else "le"
    legend = f" {{{{{by}}}}}" if by else ""
    return [
        (
            f"histogram_quantile({q / 100}, "
            f"sum by ({labels}) (rate({metric}_bucket{{@}}[$__rate_interval])))",
            f"p{q}{legend}",
        )
        for q in (50, 95, 99)
    ]


def rate(metric: str, by: str = "") -> str:
    """How much a counter grows a second."""
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate({metric}{{@}}[$__rate_interval]))"
