"""Makes `values.schema.json` and the table in the chart's README.md from `values.yaml`.

    python -m tools.chart_schema [--check] helm/tenfold

Types are those of the defaults; what a default cannot say (choices, lower bounds, what lists hold)
is said here. Knows nothing of templates. Invariant: a key that `values.yaml` does not have is an
error everywhere but within maps that Kubernetes or the user defines.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

Schema = dict[str, Any]

# Kubernetes' own structures, and maps whose keys are the user's.
OPEN = frozenset(
    {
        "resources",
        "affinity",
        "nodeSelector",
        "podAnnotations",
        "podLabels",
        "annotations",
        "labels",
        "commonLabels",
        "commonAnnotations",
        "podSecurityContext",
        "containerSecurityContext",
        "secretStoreRef",
        "startup",
        "liveness",
        "readiness",
        "strategy",
    }
)
# Strings that are joined by commas.
NAMES: Schema = {"type": "array", "items": {"type": "string", "pattern": "^[^,]+$"}}
LISTS: Mapping[str, Schema] = {
    "accessModes": {"type": "array", "items": {"type": "string"}, "minItems": 1},
    "hosts": {"type": "array", "items": {"type": "string", "minLength": 1}},
    "hostnames": {"type": "array", "items": {"type": "string", "minLength": 1}},
    "extraArgs": {"type": "array", "items": {"type": "string"}},
    "databasePorts": {"type": "array", "items": {"$ref": "#/$defs/port"}, "minItems": 1},
    "redisPorts": {"type": "array", "items": {"$ref": "#/$defs/port"}, "minItems": 1},
    "storePorts": {"type": "array", "items": {"$ref": "#/$defs/port"}, "minItems": 1},
    **{name: dict(NAMES) for name in ("allow", "networks", "knownBases")},
}
SECONDS = {"type": "integer", "minimum": 0}
OPTIONAL_COUNT = {"anyOf": [{"const": ""}, {"type": "integer", "minimum": 1}]}
POSITIVE = {"type": "number", "exclusiveMinimum": 0}
KIBIBYTE = {"type": "integer", "minimum": 1024}
# By the end of a value's path; the longest that fits wins.
OVERRIDES: Mapping[str, Schema] = {
    "port": {"$ref": "#/$defs/port"},
    "replicas": {"type": "integer", "minimum": 0},
    "minReplicas": {"type": "integer", "minimum": 0},
    "maxReplicas": {"type": "integer", "minimum": 1},
    "digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
    "tag": {"type": "string", "not": {"const": "latest"}},
    "pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "database.sslMode": {"enum": ["", "disable", "require", "verify-ca", "verify-full"]},
    "migrations.mode": {"enum": ["hook", "initContainer", "manual"]},
    "api.autoscaling.kind": {"enum": ["none", "hpa"]},
    "autoscaling.kind": {"enum": ["none", "hpa", "keda"]},
    "pdb.minAvailable": {"type": ["integer", "string"]},
    "pdb.maxUnavailable": {"type": ["integer", "string"]},
    "service.type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    "cache.type": {"enum": ["pvc", "ephemeral", "emptyDir"]},
    "settings.device": {"enum": ["auto", "cuda", "cpu"]},
    "settings.dtype": {"enum": ["", "float32", "bfloat16"]},
    "settings.preemption": {"enum": ["auto", "swap", "recompute"]},
    "settings.gpuMemoryUtilization": {
        "anyOf": [{"const": ""}, {"type": "number", "exclusiveMinimum": 0, "maximum": 1}]
    },
    **{
        f"settings.{name}": OPTIONAL_COUNT
        for name in (
            "poolBytes",
            "cpuPoolBytes",
            "hostBytes",
            "maxNumSeqs",
            "maxNumBatchedTokens",
            "threads",
        )
    },
    "tracing.sampleRatio": {"type": "number", "minimum": 0, "maximum": 1},
    **{
        f"settings.{name}": POSITIVE
        for name in (
            "stepLimitSeconds",
            "queueTimeoutSeconds",
            "maxQueueTimeoutSeconds",
            "maxQueueWaitSeconds",
            "failoverTimeoutSeconds",
            "dependencyTimeoutSeconds",
            "clientStallTimeoutSeconds",
            "bodyTimeoutSeconds",
            "maxLoopLagSeconds",
        )
    },
    "settings.maxQueuedRequests": {"type": "integer", "minimum": 1},
    "settings.prefixProtectedShare": {
        "anyOf": [{"const": ""}, {"type": "number", "minimum": 0, "maximum": 1}]
    },
    "adapters.retentionDays": {"type": "integer", "minimum": 0, "maximum": 3650},
    "adapters.maxOverrideBytes": {"anyOf": [{"const": ""}, SECONDS]},
    "adapters.uploadPartBytes": KIBIBYTE,
    "adapters.downloadUrlSeconds": {"type": "integer", "minimum": 0, "maximum": 86_400},
    "adapters.goldenTimeoutSeconds": {"type": "integer", "minimum": 1, "maximum": 86_400},
    "imports.hub": {"type": "string", "pattern": "^https?://"},
    "imports.timeoutSeconds": POSITIVE,
    "files.retentionDays": {"type": "integer", "minimum": 1},
    "files.maxFileBytes": KIBIBYTE,
    "files.maxTenantBytes": KIBIBYTE,
    "usageExport.url": {"type": "string", "pattern": "^(https?://.+)?$"},
    "gpu.count": {"type": "integer", "minimum": 1},
    "worker.maxBatches": {"type": "integer", "minimum": 1},
    "worker.batchConcurrency": {"type": "integer", "minimum": 1},
}
NAME = {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?$"}
SOURCE: Schema = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "hub": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9_.-]+$"},
        "revision": {"type": "string", "minLength": 1},
        "existingClaim": {"type": "string", "minLength": 1},
        "path": {"type": "string", "not": {"pattern": r"\.\."}},
    },
    "oneOf": [{"required": ["hub"]}, {"required": ["existingClaim"]}],
}


def schema_of_values(values: Mapping[str, Any]) -> Schema:
    """The whole schema, draft 7."""
    schema = _schema(values, ())
    engine = schema["properties"]["engine"]
    overridable = {key: value for key, value in engine["properties"].items() if key != "models"}
    engine["properties"]["models"] = {
        "type": "array",
        "items": {
            "type": "object",
            "additionalProperties": False,
            "required": ["name", "source"],
            "properties": {"name": NAME, "id": {"type": "string"}, "source": SOURCE} | overridable,
        },
    }
    schema["$schema"] = "http://json-schema.org/draft-07/schema#"
    schema["$defs"] = {"port": {"type": "integer", "minimum": 1, "maximum": 65535}}
    # What a chart above this one, or Helm itself, may pass.
    schema["properties"]["global"]["additionalProperties"] = True
    return schema


def _schema(value: Any, path: tuple[str, ...]) -> Schema:
    for start in range(len(path)):
        if override := OVERRIDES.get(".".join(path[start:])):
            return dict(override)
    name = path[-1] if path else ""
    if isinstance(value, dict):
        if name in OPEN:
            return {"type": "object"}
        properties = {key: _schema(item, (*path, key)) for key, item in value.items()}
        return {"type": "object", "additionalProperties": False, "properties": properties}
    if isinstance(value, list):
        return dict(LISTS.get(name, {"type": "array", "items": {"type": "object"}}))
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, int):
        return dict(SECONDS)
    return {"type": "string"}


def table_of_values(text: str) -> str:
    """Markdown: every value that has a `# --` comment or is a leaf, with its default."""
    rows = ["| value | default | what |", "|---|---|---|"]
    rows += [f"| `{path}` | `{default}` | {what} |" for path, default, what in _lines(text)]
    return "\n".join(rows)


def _lines(text: str) -> Iterator[tuple[str, str, str]]:
    path: list[str] = []
    comment: list[str] = []
    for line in text.splitlines():
        if not line.strip():
            comment = []
        elif found := re.match(r"\s*# -- (.*)", line):
            comment = [found[1]]
        elif line.lstrip().startswith("#"):
            comment += [line.strip(" #")] if comment else []
        elif found := re.match(r"( *)([\w.-]+):\s*(.*)$", line):
            path[len(found[1]) // 2 :] = [found[2]]
            default = found[3].partition("  #")[0]
            if default or comment:
                yield ".".join(path), default.replace("|", "\\|") or "see file", " ".join(comment)
            comment = []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("chart", type=Path)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if it would")
    options = parser.parse_args()
    stale = [path for path, text in made_files(options.chart).items() if path.read_text() != text]
    if options.check and stale:
        sys.exit(f"stale, run tools.chart_schema: {', '.join(map(str, stale))}")
    for path in stale:
        path.write_text(made_files(options.chart)[path])


def made_files(chart: Path) -> dict[Path, str]:
    """What the files that are made from `values.yaml` should hold."""
    text = (chart / "values.yaml").read_text()
    schema = json.dumps(schema_of_values(yaml.safe_load(text)), indent=2) + "\n"
    readme = chart / "README.md"
    head, marker, _ = readme.read_text().partition("## Values\n")
    table = f"{head}{marker}\n{table_of_values(text)}\n"
    return {chart / "values.schema.json": schema, readme: table}


if __name__ == "__main__":
    main()
