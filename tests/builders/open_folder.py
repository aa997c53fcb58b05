"""A folder that any user can enter, unlike pytest's own.

Under root Postgres runs as user nobody; from a closed folder the launcher moves its cluster to
/var/lib/tenfold, where it would outlive the tests.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def open_folder() -> Iterator[Path]:
    """A new folder, removed at the end with all that is in it."""
    with tempfile.TemporaryDirectory(prefix="tenfold-test-") as name:
        path = Path(name)
        path.chmod(0o711)
        yield path
