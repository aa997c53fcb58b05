"""Several secrets in one setting, so that one takes another's place while processes run.

Knows nothing of what they are for. Invariant: every setting that may name several is read here: the
first is the one to use, and whatever any of them made is believed.
"""

from __future__ import annotations


def secrets_of(text: str) -> tuple[str, ...]:
    """`"new, old"` -> `("new", "old")`: at least one, and no white space around any."""
    return tuple(each.strip() for each in text.split(","))
