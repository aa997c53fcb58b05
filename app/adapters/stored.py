"""Whether an adapter's bytes are in the store. Knows nothing of whose they are."""

from __future__ import annotations

from lora.store import CONFIG_FILE, AdapterMissingError, AdapterStore


def is_stored(store: AdapterStore, locator: str) -> bool:
    """In a thread. Raises StoreUnavailableError."""
    try:
        store.read(locator, CONFIG_FILE)
    except AdapterMissingError:
        return False
    return True
