"""Adapters and versions as the API shows and takes them. Aliases: `app.adapters.alias_schemas`."""

from __future__ import annotations

from datetime import date
from typing import Any, Literal, Self

from pydantic import Field

from app.adapters.submission import Provenance
from app.bodies import Body, Labels, Line, Timestamp
from app.etags import Tagged
from app.tables import Adapter, AdapterVersion

Day = date


class AdapterCreate(Body):
    """`base_model` defaults to the served base, and must be it. `metadata` is its owner's own."""

    name: str
    base_model: Line | None = None
    description: Line | None = None
    metadata: Labels = Field(default_factory=dict)


class AdapterPatch(Body):
    """What is not sent stays as it is."""

    description: Line | None = None
    metadata: Labels = Field(default_factory=dict)


class DeprecatePost(Body):
    """`date`: from that day on (UTC) it is not served; null: not yet known."""

    date: Day | None = None


class AdapterView(Tagged):
    object: Literal["adapter"] = "adapter"
    id: str
    tenant_id: str
    name: str
    base_model: str
    description: str | None
    metadata: dict[str, str]
    aliases: dict[str, str]
    created: Timestamp

    @classmethod
    def of(cls, adapter: Adapter, aliases: dict[str, int]) -> Self:
        return cls(
            id=adapter.id,
            tenant_id=adapter.tenant_id,
            name=adapter.name,
            base_model=adapter.base_model_id,
            description=adapter.description,
            metadata=adapter.labels,
            aliases={alias: f"v{number}" for alias, number in sorted(aliases.items())},
            created=adapter.created_at,
        )


class VersionView(Tagged):
    """`state`: one of `app.adapters.states`. `report` lists all that was found.

    `shutdown_date`: from that day on (UTC) a deprecated version is not served. `provenance`: null
    for a version from before it was kept.
    """

    object: Literal["adapter.version"] = "adapter.version"
    id: str
    adapter_id: str
    version: str
    state: str
    digest: str
    bytes: int
    files: list[dict[str, Any]]
    manifest: dict[str, Any]
    report: dict[str, Any]
    provenance: Provenance | None
    created: Timestamp
    activated_at: Timestamp | None
    shutdown_date: date | None

    @classmethod
    def of(cls, version: AdapterVersion) -> Self:
        return cls(
            id=version.id,
            adapter_id=version.adapter_id,
            version=f"v{version.number}",
            state=version.state,
            digest=version.digest,
            bytes=version.num_bytes,
            files=[
                {"name": file["name"], "bytes": file["num_bytes"], "sha256": file["sha256"]}
                for file in version.files
            ],
            manifest=version.manifest,
            report=version.report,
            provenance=_provenance(version),
            created=version.created_at,
            activated_at=version.activated_at,
            shutdown_date=version.shutdown_on,
        )


def _provenance(version: AdapterVersion) -> Provenance | None:
    kept = version.provenance
    return None if kept is None else Provenance.model_validate(kept)


def describe_version(version: AdapterVersion) -> dict[str, Any]:
    """A version in a few words, without what was found in it: for the audit log."""
    return {
        "adapter_id": version.adapter_id,
        "version": f"v{version.number}",
        "digest": version.digest,
        "state": version.state,
        "shutdown_date": None if version.shutdown_on is None else version.shutdown_on.isoformat(),
    }
