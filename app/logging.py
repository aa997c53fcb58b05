"""Logs are JSON events on standard error, one per line: `engine/event_log.py`, for all processes.

Knows nothing of what is logged.
"""

from __future__ import annotations

from engine.event_log import configure_logging

__all__ = ["configure_logging"]
