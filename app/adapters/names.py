"""How adapters are named: the grammar of `model` in a request, and which names may be given.

Knows nothing of what exists. Invariant: a name in this grammar denotes at most one version within
one tenant, and whether a string belongs to the grammar does not depend on the tenant.

    support-bot                  its `prod` alias
    support-bot:canary           an alias
    support-bot@v3               a version
    support-bot@sha256:ab12...   a version by at least 12 digits of its digest
"""

from __future__ import annotations

import re
from dataclasses import dataclass

DEFAULT_ALIAS = "prod"
RESERVED_NAMES = frozenset({"base", "latest"})

_NAME = r"[a-z0-9][a-z0-9._-]{0,62}"
_MODEL = re.compile(
    rf"(?P<name>{_NAME})"
    rf"(?::(?P<alias>{_NAME})|@v(?P<number>[1-9][0-9]{{0,8}})|@(?P<digest>sha256:[0-9a-f]{{12,64}}))?"
)
_NAME_PATTERN = re.compile(_NAME)
_NUMBER_PATTERN = re.compile(r"v[0-9]+")


@dataclass(frozen=True, slots=True)
class AdapterName:
    """One of `alias`, `number` and `digest_prefix` is set."""

    name: str
    alias: str | None = None
    number: int | None = None
    digest_prefix: str | None = None


def parse_model(model: str) -> AdapterName | None:
    """The parts of a `model` string, or None where it is not in the grammar."""
    match = _MODEL.fullmatch(model)
    if match is None:
        return None
    name, alias, number, digest = match.group("name", "alias", "number", "digest")
    if number is not None:
        return AdapterName(name, number=int(number))
    if digest is not None:
        return AdapterName(name, digest_prefix=digest)
    return AdapterName(name, alias=alias or DEFAULT_ALIAS)


def is_adapter_name(name: str) -> bool:
    """Whether an adapter (or a tenant's slug) may be called so."""
    return _NAME_PATTERN.fullmatch(name) is not None and name not in RESERVED_NAMES


def is_alias(alias: str) -> bool:
    """Whether an alias may be called so: never like a version or a digest."""
    return is_adapter_name(alias) and alias != "sha256" and _NUMBER_PATTERN.fullmatch(alias) is None
