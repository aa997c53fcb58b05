"""What a client is told when an upload's bytes cannot be kept: the disk is full, or gone.

Knows nothing of adapters. Invariant: what the file system says stays in the log.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from app.errors import UnavailableError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def storage_errors() -> Iterator[None]:
    """OSErrors become UnavailableError: `storage_full`, or `dependency_unavailable`."""
    try:
        yield
    except OSError as error:
        internal = f"storage: {errno.errorcode.get(error.errno or 0, type(error).__name__)}"
        if error.errno in _FULL:
            raise UnavailableError(
                "There is no room for the upload. Please try again later.",
                code="storage_full",
                internal=internal,
            ) from error
        raise UnavailableError(internal=internal) from error
