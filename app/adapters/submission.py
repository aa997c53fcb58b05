"""How an upload is meant and where it comes from: what is kept of both with its version.

Knows nothing of its files. Invariant: a provenance names no credential; a source is one of
`app.imports.sources`, which has neither user nor query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Depends, Query
from pydantic import BaseModel, Field, StringConstraints

from app.audit.trail import AuditTrail
from app.bodies import Storable

MAX_LICENSE_CHARS = 128

License = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_LICENSE_CHARS),
    Storable,
    Field(examples=["apache-2.0"]),
]


class Provenance(BaseModel):
    """Where a version comes from, for good.

    `uploaded_by`: `operator`, or the id of the tenant's key. `via`: `upload` (one request), `parts`
    or `import`. `source`, `revision`: of an import, as it was asked for and what that meant then.
    `license`: what the uploader says it is under, as it was said.
    """

    uploaded_by: str | None
    via: Literal["upload", "parts", "import"]
    source: Annotated[str | None, Field(examples=["hf://acme-org/support-bot@main"])] = None
    revision: Annotated[str | None, Field(examples=["4f1d7c9a0b3e5826"])] = None
    license: License | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """What whoever sends an adapter says of it. `strict`: its warnings refuse it too."""

    strict: bool = False
    license: str | None = None


def terms_query(strict: bool = False, license: Annotated[License | None, Query()] = None) -> Terms:
    """`strict=true`: what is otherwise a warning refuses it. `license`: such as `apache-2.0`."""
    return Terms(strict=strict, license=license)


Told = Annotated[Terms, Depends(terms_query)]


@dataclass(frozen=True, slots=True)
class Submission:
    """An upload on its way in. `activates`: it is to be active as soon as it has passed."""

    provenance: Provenance
    strict: bool = False
    activates: bool = True

    @classmethod
    def of(
        cls,
        via: Literal["upload", "parts"],
        terms: Terms,
        trail: AuditTrail,
        *,
        activates: bool = True,
    ) -> Submission:
        """Of whoever sends it with this request."""
        provenance = Provenance(uploaded_by=trail.actor, via=via, license=terms.license)
        return cls(provenance, terms.strict, activates)
