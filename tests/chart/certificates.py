"""Certificates of authorities that live as long as a test. Made by openssl.

Knows nothing of who shows them. Invariant: a certificate names one host and no address.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.chart.tooling import need

HOST = "localhost"
"""What servers are called that show certificates here."""
EC_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
EXTENSIONS = "subjectAltName=DNS:{host}\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n"


@dataclass(frozen=True, slots=True)
class Certificate:
    path: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Authority:
    """`path`: what those trust who trust it."""

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / "ca.crt"

    def certify(self, host: str) -> Certificate:
        """A new certificate of this host, and its key."""
        made = Certificate(self.folder / f"{host}.crt", self.folder / f"{host}.key")
        request, extensions = self.folder / f"{host}.csr", self.folder / f"{host}.ext"
        extensions.write_text(EXTENSIONS.format(host=host))
        subject = ("-subj", f"/CN={host}")
        _openssl("req", "-new", *EC_KEY, *subject, "-keyout", made.key, "-out", request)
        signer = ("-CA", self.path, "-CAkey", self.folder / "ca.key", "-CAcreateserial")
        options = ("-days", "2", "-extfile", extensions, "-out", made.path)
        _openssl("x509", "-req", "-in", request, *signer, *options)
        return made


def new_authority(folder: Path) -> Authority:
    """In a new folder."""
    folder.mkdir()
    made = ("-keyout", folder / "ca.key", "-out", folder / "ca.crt")
    _openssl("req", "-x509", *EC_KEY, "-days", "2", "-subj", f"/CN=authority {folder.name}", *made)
    return Authority(folder)


def _openssl(*arguments: str | Path) -> None:
    need("openssl")
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
