"""Certificates for extenders that require them; ``test_read`` and ``test_ui`` ask."""

from pathlib import Path

import pytest

from gpushare.kube.names import EXTENDER_SERVER_NAME
from gpusharectl.state.extender import read_certificates
from tests.testbed.certificates import Certificates, certificates


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates(tmp_path_factory.mktemp("extender") / "tls")


def test_the_hosts_own_certificates_are_found(held: Certificates) -> None:
    """The first folder that has them; a host without any is no error."""
    nowhere = Path("/nowhere")
    found = read_certificates(None, [nowhere, held.folder])
    assert found is not None
    assert found[1] == EXTENDER_SERVER_NAME
    assert found[0].get_ca_certs()
    assert read_certificates(None, [nowhere]) is None


def test_a_folder_that_was_named_must_have_them(
    held: Certificates, tmp_path: Path
) -> None:
    """The file that is missing is named, and one that is none is an error too."""
    (tmp_path / "ca.crt").write_bytes(held.read()["ca.crt"])
    with pytest.raises(FileNotFoundError, match=r"client\.crt"):
        read_certificates(tmp_path)
    for name in ("client.crt", "client.key"):
        (tmp_path / name).write_text("none")
    with pytest.raises(OSError):
        read_certificates(tmp_path)
