"""A folder with the certificates that an installer would write, and who shows them."""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gpushare.kube.names import EXTENDER_SERVER_NAME
from gpusharectl.installer.pki import (
    CLIENT_SIDE,
    WantedCert,
    issue_certificate,
    make_authority,
    plan_certificates,
    read_pair,
)
from tests.testbed.rest import Json


@dataclass(frozen=True)
class Certificates:
    """``ca``, ``server`` and ``client``, as ``.crt`` and ``.key``, in one folder."""

    folder: Path

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def read(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.folder.iterdir()}

    def write(self) -> None:
        """Write what is missing or due now, as an installer does: each file at once."""
        for name, file in plan_certificates(self.read(), datetime.now(UTC)).items():
            self.replace(name, file.content)

    def replace(self, name: str, content: bytes) -> None:
        new = self.folder / f".{name}"
        new.write_bytes(content)
        new.rename(self.folder / name)

    def renew(self, name: str) -> int:
        """Make one pair anew, and give its certificate's serial number."""
        self.folder.joinpath(f"{name}.crt").unlink()
        self.write()
        pair = read_pair(self.read(), name)
        assert pair
        return pair.certificate.serial_number

    def expired(self) -> None:
        """Put a client there that the right authority signed, long ago."""
        authority = read_pair(self.read(), "ca")
        assert authority
        wanted = WantedCert("expired", "expired", CLIENT_SIDE)
        long_ago = datetime.now(UTC) - timedelta(days=366)
        pair = issue_certificate(authority, wanted, long_ago)
        self.replace("expired.crt", pair.certificate_pem)
        self.replace("expired.key", pair.key_pem)

    def stranger(self) -> None:
        """Put a client there that another authority signed, of the same name."""
        wanted = WantedCert("stranger", "stranger", CLIENT_SIDE)
        now = datetime.now(UTC)
        pair = issue_certificate(make_authority(now), wanted, now)
        self.replace("stranger.crt", pair.certificate_pem)
        self.replace("stranger.key", pair.key_pem)

    @property
    def settings(self) -> dict[str, str]:
        """The extender's."""
        return {
            "TLS_CERT": self.path("server.crt"),
            "TLS_KEY": self.path("server.key"),
            "TLS_CLIENT_CA": self.path("ca.crt"),
        }

    @property
    def stanza(self) -> Json:
        """What kube-scheduler's entry has more with TLS."""
        tls = {
            "caFile": self.path("ca.crt"),
            "certFile": self.path("client.crt"),
            "keyFile": self.path("client.key"),
            "serverName": EXTENDER_SERVER_NAME,
        }
        return {"enableHTTPS": True, "tlsConfig": tls}

    def client(self, name: str | None = "client") -> ssl.SSLContext:
        """Trust the authority alone, and show this certificate, or none."""
        context = ssl.create_default_context(cafile=self.path("ca.crt"))
        # What newer Pythons insist on, so that none refuses our certificates.
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        if name:
            context.load_cert_chain(self.path(f"{name}.crt"), self.path(f"{name}.key"))
        return context


def certificates(folder: Path) -> Certificates:
    """Make a folder with all three pairs."""
    folder.mkdir()
    made = Certificates(folder)
    made.write()
    return made
