"""docs/k3s-report.sh, with programs that stand in for k3s and its tools."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

SCRIPT = Path(__file__).parents[4] / "docs" / "k3s-report.sh"
SECRET = "K10c0ffee::server:hidden"
CONFIG = f"token: {SECRET}\nkube-scheduler-arg:\n- config=/etc/x/scheduler.yaml\n"
K3S = """#!/bin/sh
case "$*" in
*jsonpath=*image*) printf gpushare:0.1.0 ;;
"kubectl get runtimeclass nvidia"*) printf '%s' "$CLASS" ;;
*"apply -f -") cat > "$APPLIED" ;;
*"wait pod"*) echo timed out; exit 1 ;;
*) echo "k3s $*" ;;
esac
"""


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host with k3s and its settings, and without gpusharectl."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in {
        "k3s": K3S,
        "journalctl": "#!/bin/sh\necho the extender answered; echo another line\n",
    }.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    (tmp_path / "k3s/vcuda").mkdir(parents=True)
    (tmp_path / "k3s/config.yaml").write_text(CONFIG)
    (tmp_path / "k3s/vcuda/scheduler.yaml").write_text("extenders: []\n")
    return tmp_path


def report(host: Path, runtime_class: str = "nvidia") -> str:
    environment = {
        "PATH": f"{host / 'bin'}:/usr/bin:/bin",
        "K3S_CONFIG": str(host / "k3s"),
        "APPLIED": str(host / "pod.yaml"),
        "CLASS": runtime_class,
    }
    done = subprocess.run(
        ["/bin/sh", str(SCRIPT)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


def test_ten_commands_run_whatever_fails(host: Path) -> None:
    """Each is shown with its exit code if it failed; the pod is deleted at the end."""
    found = report(host)
    headings = re.findall(r"^## (\d+)\. ", found, re.MULTILINE)
    assert headings == [str(number) for number in range(1, 11)]
    assert found.count("## exit code 127") == 2, "there is no gpusharectl"
    assert "timed out\n## exit code 1" in found
    assert "the extender answered" in found
    assert "another line" not in found
    assert found.splitlines()[-1].startswith("k3s kubectl -n default delete pod")


def test_no_token_is_printed(host: Path) -> None:
    """Of k3s's own settings only the lines about the scheduler."""
    found = report(host)
    assert SECRET not in found
    assert "config=/etc/x/scheduler.yaml" in found
    assert "extenders: []" in found


@pytest.mark.parametrize("runtime_class", ["nvidia", ""])
def test_the_pod_has_the_cluster_s_image_and_class(
    host: Path, runtime_class: str
) -> None:
    report(host, runtime_class)
    spec = yaml.safe_load((host / "pod.yaml").read_text())["spec"]
    assert spec.get("runtimeClassName", "") == runtime_class
    (container,) = spec["containers"]
    assert container["image"] == "gpushare:0.1.0"
    assert container["resources"]["limits"] == {
        "baidu.com/vcuda-memory": 1,
        "baidu.com/vcuda-core": 1,
    }
