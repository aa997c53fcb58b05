"""Makes the chart's Grafana dashboards: `helm/tenfold/dashboards/*.json`.

    python -m tools.dashboards [--check] helm/tenfold

What they show is in `tools/dashboard_panels.py`; everything else of Grafana's JSON is the same for
all panels. Knows nothing of how metrics are made.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from tools.dashboard_model import Dashboard, Panel
from tools.dashboard_panels import DASHBOARDS

Json = dict[str, Any]
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
SCHEMA_VERSION = 39
WIDTH, HEIGHT, COLUMNS = 8, 8, 24


def grafana(dashboard: Dashboard) -> Json:
    """Grafana's JSON model of a dashboard."""
    panels = [_panel(dashboard, panel, place) for place, panel in enumerate(dashboard.panels)]
    return {
        "uid": f"tenfold-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["tenfold"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables(dashboard)},
        "panels": panels,
    }


def _variables(dashboard: Dashboard) -> list[Json]:
    found = [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
        _listed("namespace", "label_values(tenfold_build_info, namespace)"),
    ]
    if dashboard.variable is not None:
        name, metric, label = dashboard.variable
        query = f'label_values({metric}{{namespace=~"$namespace"}}, {label})'
        found.append(_listed(name, query))
    return found


def _listed(name: str, query: str) -> Json:
    return {
        "name": name,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": ["All"], "value": ["$__all"]},
        "refresh": 2,
        "sort": 1,
    }


def _panel(dashboard: Dashboard, panel: Panel, place: int) -> Json:
    per_row = COLUMNS // WIDTH
    return {
        "id": place + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": DATASOURCE,
        "gridPos": {
            "x": WIDTH * (place % per_row),
            "y": HEIGHT * (place // per_row),
            "w": WIDTH,
            "h": HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": DATASOURCE,
                "expr": query.replace("@", dashboard.selectors),
                "legendFormat": legend,
            }
            for index, (query, legend) in enumerate(panel.queries)
        ],
    }


def made_files(chart: Path) -> dict[Path, str]:
    """What the files should hold."""
    return {
        chart / "dashboards" / f"{each.name}.json": json.dumps(grafana(each), indent=2) + "\n"
        for each in DASHBOARDS
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("chart", type=Path)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if it would")
    options = parser.parse_args()
    stale = {
        path: text
        for path, text in made_files(options.chart).items()
        if not path.is_file() or path.read_text() != text
    }
    if options.check and stale:
        sys.exit(f"stale, run tools.dashboards: {', '.join(map(str, stale))}")
    for path, text in stale.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
