"""What a client is told when an upload's bytes cannot be kept: the disk or bucket is full, or gone.

Knows nothing of adapters. Invariant: what the file system or the bucket says stays in the log.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from app.errors import UnavailableError
from lora.store import StoreUnavailableError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def storage_errors() -> Iterator[None]:
    """OSErrors and a store's become UnavailableError: `storage_full`, `dependency_unavailable`."""
    try:
        yield
    except StoreUnavailableError as error:
        raise UnavailableError(internal=f"storage: {error}") from error
    except OSError as error:
        internal = f"storage: {errno.errorcode.get(error.errno or 0, type(error).__name__)}"
        if error.errno in _FULL:
            raise UnavailableError(
                "There is no room for the upload. Please try again later.",
                code="storage_full",
                internal=internal,
            ) from error
        raise UnavailableError(internal=internal) from error
