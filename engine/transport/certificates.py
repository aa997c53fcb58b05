"""Certificates: what says of an adapter's digest that it was tried on a base, and by whom.

Knows nothing of what is tried. Invariants: a certificate is of one digest, one base and one set of
figures, and only who has the installation's secret can make one; what is not exactly one that this
secret made is none.

It is `<SHA-256 of the figures>.<MAC>` in hex; the MAC is HMAC-SHA256 (RFC 2104) over all that it is
about. So a message carries 129 characters, and whoever has the figures can see that they are those.
"""

from __future__ import annotations

import hashlib
import hmac

import msgspec

from engine.messages import EngineError, ModuleFigure
from engine.transport.secret_list import secrets_of

UNCERTIFIED = EngineError(
    code="adapter_uncertified", message="The adapter has no valid certificate on this base."
)

MAX_MODULE_ERROR = 1e-3
"""Relative to what the adapter adds: float32 sums over thousands of terms are far below it."""

_DOMAIN = b"tenfold adapter certificate 1"
_FIGURES_CHARS = 64


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured. `golden`: the largest change of a logit, by golden prompt."""

    golden: tuple[float, ...]
    modules: tuple[ModuleFigure, ...] = ()

    @property
    def is_without_effect(self) -> bool:
        """Whether no golden prompt told the adapter from the base."""
        return not any(self.golden)


class Certificates:
    """Of one process and one base. All processes of an installation share the secret."""

    def __init__(self, secrets: str, base_fingerprint: str) -> None:
        """secrets: as `engine.transport.codec.Codec` has them: the first signs, any is believed."""
        self._keys = [secret.encode() for secret in secrets_of(secrets)]
        self._base = base_fingerprint.encode()

    def issue(self, digest: str, figures: Figures) -> str:
        """The certificate of `digest` on this base."""
        about = hashlib.sha256(canonical(figures)).hexdigest()
        return f"{about}.{self._mac(self._keys[0], digest, about)}"

    def is_valid(self, digest: str, certificate: str) -> bool:
        """Whether `certificate` is one of `digest` on this base."""
        about, _, mac = certificate.partition(".")
        if len(about) != _FIGURES_CHARS or not certificate.isascii():
            return False
        return any(hmac.compare_digest(mac, self._mac(key, digest, about)) for key in self._keys)

    def covers(self, digest: str, certificate: str, figures: Figures) -> bool:
        """Whether it is valid, and of these figures."""
        about = hashlib.sha256(canonical(figures)).hexdigest()
        return certificate.startswith(f"{about}.") and self.is_valid(digest, certificate)

    def _mac(self, key: bytes, digest: str, about: str) -> str:
        text = b"\0".join((_DOMAIN, digest.encode(), self._base, about.encode()))
        return hmac.digest(key, text, "sha256").hex()


def canonical(figures: Figures) -> bytes:
    """Figures as the bytes that a certificate is about."""
    return msgspec.json.encode(figures, order="sorted")
