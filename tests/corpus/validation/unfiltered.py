"""`python -m tests.corpus.validation.unfiltered`: the same children, where the kernel filters no
calls: the control of what the audit hook alone hears."""

from __future__ import annotations

from unittest import mock

from app.adapters import confinement
from tests.corpus.validation.misbehaving import main

if __name__ == "__main__":
    with mock.patch.object(confinement, "filter_syscalls", return_value=False):
        main()
