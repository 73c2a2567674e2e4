"""A cluster that answers, but not to everybody."""

import pytest

from gpusharectl.access import CannotReachError, reach
from tests.testbed.controlplane import ControlPlane
from tests.testbed.credentials import grant, service_account_token

pytestmark = [
    pytest.mark.controlplane,
    # Of the test bed's certificate.
    pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning"),
]


def test_credentials_that_nobody_knows(plane: ControlPlane) -> None:
    """As after a certificate has expired, or of another cluster."""
    config = str(plane.kubeconfig("wrong", "wrong"))
    with pytest.raises(CannotReachError) as caught:
        reach(config)
    assert caught.value.message == (
        f"{plane.url} does not accept the credentials with {config}, context testbed "
        "(Unauthorized); name a newer kubeconfig, such as the administrator's, with "
        "--kubeconfig"
    )


def test_without_the_rights(plane: ControlPlane) -> None:
    """It names those that are missing."""
    token = service_account_token(plane.rest, "default", "few")
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    grant(plane.rest, "system:serviceaccount:default:few", rules)
    config = str(plane.kubeconfig(token, "few"))
    with pytest.raises(CannotReachError, match="does not let you list nodes in all"):
        reach(config)
    reach(config, needs=[("list", "pods")]).close()


def test_another_certificate(plane: ControlPlane) -> None:
    """An API server that is not the one of the kubeconfig."""
    config = plane.kubeconfig(plane.admin.token, "strict")
    text = config.read_text().replace('"insecure-skip-tls-verify": true', '"a": 1')
    config.write_text(text)
    with pytest.raises(CannotReachError, match=r"(?i)certificate"):
        reach(str(config))
