"""`python -m tests.stub_engine --redis-url URL`: see `tests/stub_engine/process.py`."""

from __future__ import annotations

import sys
from typing import Any

if __name__ == "__main__":
    # NOTE: what structlog and redis import where they find it, and an engine does without. It
    # would take a third of the time to boot.
    optional: dict[str, Any] = dict.fromkeys(("rich", "opentelemetry"))
    sys.modules.update(optional)

    from tests.stub_engine.process import main

    main()
