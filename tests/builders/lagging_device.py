"""A host that answers like a busy GPU: what was queued is done only when time passes or one waits.

Its work is real and done at once; only its events lag, so that whoever does not wait for one, or
waits where it must not, is seen.
"""

from __future__ import annotations

from engine.device import Event, HostDevice


class LaggingEvent:
    def __init__(self, device: LaggingDevice) -> None:
        self._device = device
        self._due = device.now + device.lag

    def is_done(self) -> bool:
        return self._device.now >= self._due

    def wait(self) -> None:
        if not self.is_done():
            self._device.num_waits += 1
            self._device.now = self._due

    def seconds_since(self, earlier: Event) -> float:
        assert isinstance(earlier, LaggingEvent)
        return float(self._due - earlier._due)


class LaggingDevice(HostDevice):
    """Events are done `lag` ticks after they were recorded; a wait lets that time pass."""

    def __init__(self, lag: int = 1) -> None:
        self.lag = lag
        self.now = 0
        self.num_waits = 0

    def record(self, *, timed: bool = False) -> Event:
        return LaggingEvent(self)
