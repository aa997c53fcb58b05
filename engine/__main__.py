"""`python -m engine`: one engine process. See `engine/server.py` for its options."""

from __future__ import annotations

import os

if __name__ == "__main__":
    # OpenMP reads this once, when torch is loaded. Threads that spin while they wait for each
    # other slow every step down many times over as soon as anything else wants a core.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

    from engine.server import main

    main()
