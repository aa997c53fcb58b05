"""The states of an adapter version, and the one table of how it may go from one to another.

Knows nothing of SQL or of who asks. Invariants: no version changes its state but along an edge of
`EDGES`, and each edge is an action of the audit log; what may be named by an alias or a request is
one question, asked here. What engines hold is another matter (`app.adapters.residency`).

    verifying -> validated | active | rejected      what the check found; active where it is to be
    rejected  -> verifying                          its bytes were sent again
    validated -> active <-> deprecated -> archived  archived -> active is a restoration
    any of these -> deleting -> deleted             deleted: no byte of it is left anywhere
    deleting  -> active                             taken back, while its bytes are still there

A version has a digest, so that it begins when its bytes have arrived and passed the structural
check; before that it is an upload (`app.uploads`), with states of its own.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import date

from app.errors import ConflictError
from app.tables import AdapterVersion

VERIFYING = "verifying"
VALIDATED = "validated"
ACTIVE = "active"
DEPRECATED = "deprecated"
ARCHIVED = "archived"
REJECTED = "rejected"
DELETING = "deleting"
DELETED = "deleted"

STATES = (VERIFYING, VALIDATED, ACTIVE, DEPRECATED, ARCHIVED, REJECTED, DELETING, DELETED)
NAMEABLE = (ACTIVE, DEPRECATED)
"""What an alias or a request may name; a deprecated one until its day."""
SHADOWABLE = (VALIDATED, ACTIVE, DEPRECATED)
"""What may run beside an alias, where nobody sees its answers."""
LOADABLE = (VALIDATED, ACTIVE, DEPRECATED, ARCHIVED)
"""What an engine may load, whether or not somebody may name it."""
NEEDS_BYTES = (VERIFYING, VALIDATED, ACTIVE, DEPRECATED, ARCHIVED)
"""What may be served, or may come to be."""
GONE = (DELETING, DELETED)

EDGES = {
    (VERIFYING, VALIDATED): "version.validated",
    (VERIFYING, ACTIVE): "version.activated",
    (VERIFYING, REJECTED): "version.rejected",
    (REJECTED, VERIFYING): "version.sent_again",
    (VALIDATED, ACTIVE): "version.activated",
    (ACTIVE, DEPRECATED): "version.deprecated",
    (DEPRECATED, ACTIVE): "version.activated",
    (DEPRECATED, ARCHIVED): "version.archived",
    (ARCHIVED, ACTIVE): "version.restored",
    **{
        (state, DELETING): "version.deleted"
        for state in (VERIFYING, VALIDATED, ACTIVE, DEPRECATED, ARCHIVED, REJECTED)
    },
    (DELETING, DELETED): "version.erased",
    (DELETING, ACTIVE): "version.restored",
}
"""(from, to) -> what the audit log calls it."""


def change_state(version: AdapterVersion, state: str) -> str:
    """Move `version` along an edge; returns its action. Raises ConflictError where there is none.

    Code: `version_state_conflict`, with the states that it could go to.
    """
    action = EDGES.get((version.state, state))
    if action is None:
        raise ConflictError(
            f"v{version.number} is {version.state} and cannot become {state}.",
            code="version_state_conflict",
            param="version",
            details={"state": version.state, "may_become": successors(version.state)},
        )
    version.state = state
    return action


def successors(state: str) -> list[str]:
    """The states that may follow `state`."""
    return [after for before, after in EDGES if before == state]


def is_nameable(version: AdapterVersion, today: date) -> bool:
    """Whether an alias may point at it and a request may name it, on that day (UTC)."""
    return version.state in NAMEABLE and not is_shut_down(version.shutdown_on, today)


def is_shut_down(shutdown_on: date | None, today: date) -> bool:
    return shutdown_on is not None and shutdown_on <= today


def refuse_unloadable(
    version: AdapterVersion, *, states: Collection[str] = LOADABLE, param: str = "version"
) -> None:
    """Raises ConflictError (`version_not_active`) where it is in none of these states."""
    if version.state not in states:
        raise ConflictError(
            f"v{version.number} is {version.state}: no engine may load it.",
            code="version_not_active",
            param=param,
        )
