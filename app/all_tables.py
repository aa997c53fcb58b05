"""Every table of the registry, whichever domain has it: what migrations are compared with.

Knows nothing of columns. Invariant: a table that is not imported here does not exist for Alembic,
and the test of the migrations says so.
"""

from __future__ import annotations

import app.adapters.tables
import app.admission.tables
import app.audit.tables
import app.batches.tables
import app.files.tables
import app.idempotency.tables
import app.imports.tables
import app.prices.tables
import app.rollouts.tables
import app.tables
import app.uploads.tables

METADATA = app.tables.Table.metadata

__all__ = ["METADATA"]
