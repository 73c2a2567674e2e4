"""What stops a server before it listens."""

import pytest

from extender import gunicorn_conf as extender_conf
from webhook import gunicorn_conf as webhook_conf


@pytest.mark.parametrize("program", ["extender", "webhook"])
def test_all_complaints_are_told_at_the_start(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On standard error, before anything listens: of settings, files, and cluster."""
    wrong = {"TLS_CERT": "/none", "TLS_KEY": "/none"}
    wrong |= {"LOG_LEVEL": "LOUD", "KUBECONFIG": "/none"}
    if program == "extender":
        wrong["TLS_CLIENT_CA"] = "/none"
    for name, value in wrong.items():
        monkeypatch.setenv(f"GPUSHARE_{name}", value)
    with pytest.raises(SystemExit) as ended:
        (webhook_conf if program == "webhook" else extender_conf).on_starting(None)
    assert ended.value.code == 1
    printed = capsys.readouterr().err
    assert printed.startswith(f"The {program} cannot start:\n")
    for name in wrong:
        assert f"  GPUSHARE_{name}: " in printed
