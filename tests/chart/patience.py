"""How long the chart's checks wait. No figure of theirs is a time: a busy machine is to fail none.

What has ended is noticed at once; these are for what never comes.
"""

from __future__ import annotations

START_S = 300.0
STOP_S = 60.0
TEST_S = 900.0
