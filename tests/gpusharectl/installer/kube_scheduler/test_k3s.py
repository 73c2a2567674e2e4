"""kube-scheduler inside k3s: its files before, with us, and after us."""

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from gpusharectl.installer.kube_scheduler.files import FilesTarget, shipped_extender
from gpusharectl.installer.kube_scheduler.host import SchedulerTimeouts
from gpusharectl.installer.kube_scheduler.host_files import HostFiles, Obstacle
from gpusharectl.installer.kube_scheduler.k3s import (
    K3sFile,
    K3sScheduler,
    Run,
    k3s_node_name,
    restart_command,
)
from gpusharectl.installer.kube_scheduler.static_pod import Additions
from gpusharectl.installer.kube_scheduler.verify import PollPace

GOLDEN = Path(__file__).parent / "golden" / "k3s"
ASKED = FilesTarget("0.1.0", shipped_extender(), datetime(2026, 11, 21, tzinfo=UTC))
FOLDER = "/etc/rancher/k3s"
OURS = Additions(f"{FOLDER}/vcuda/scheduler.yaml", f"{FOLDER}/vcuda")
FILE = K3sFile()


KUBECONFIG = """\
clusters: [{name: c, cluster: {server: "https://127.0.0.1:6444"}}]
contexts: [{name: s, context: {cluster: c}}]
current-context: s
"""


def test_its_api_server_is_in_the_same_process(tmp_path: Path) -> None:
    """As k3s writes it; a configuration of one's own may name another."""
    one = scheduler(tmp_path)
    path = "/var/lib/rancher/k3s/server/cred/scheduler.kubeconfig"
    write(tmp_path, path, KUBECONFIG)
    assert one.why_elsewhere() == ""
    assert one.authority == b""
    write(tmp_path, f"{FOLDER}/vcuda/tls/ca.crt", "PEM")
    assert one.authority == b"PEM"
    write(tmp_path, path, KUBECONFIG.replace("127.0.0.1", "lb"))
    assert "names https://lb:6444, which is not" in one.why_elsewhere()
    write(tmp_path, K3sFile.path, "kube-scheduler-arg: config=/own.yaml")
    assert "names /own.yaml, which does not exist" in one.why_elsewhere()


class Answering:
    """An API server that answers when it is asked the second time."""

    def __init__(self) -> None:
        self.asked = 0

    def version(self) -> str | None:
        self.asked += 1
        return "v1.31.4+k3s1" if self.asked > 1 else None


def found(root: Path) -> dict[str, bytes]:
    """What lies in /etc."""
    files = (path for path in sorted((root / "etc").rglob("*")) if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def scheduler(
    root: Path, run: Run | None = None, data_dir: str = "/var/lib/rancher/k3s"
) -> K3sScheduler:
    """One that has been started before, so its credentials are there."""
    write(root, f"{data_dir}/server/cred/scheduler.kubeconfig", "")
    timeouts = SchedulerTimeouts(pace=PollPace(clock=lambda: 0.0, pause=lambda _: None))
    return K3sScheduler(HostFiles(root), Answering(), "edge", ASKED, run, timeouts)


def write(root: Path, path: str, text: str) -> None:
    HostFiles(root).write(path, text.encode())


def refused(root: Path) -> str:
    plan = scheduler(root).plan()
    assert isinstance(plan, Obstacle)
    return str(plan)


def settings_of(root: Path, data_dir: str = "/var/lib/rancher/k3s") -> dict:
    """Install, and return our configuration."""
    host = scheduler(root, data_dir=data_dir)
    host.apply(host.plan())
    return yaml.safe_load(HostFiles(root).read(OURS.config) or b"")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A server of k3s with settings and a scheduler configuration of its own."""
    shutil.copytree(GOLDEN / "before", tmp_path / "host")
    return tmp_path / "host"


def test_before_with_us_and_after(root: Path) -> None:
    before = found(root)
    host = scheduler(root)
    host.apply(host.plan())
    host.finish()
    assert found(root) == found(GOLDEN / "after")
    assert scheduler(root).plan() == []
    host.apply(host.plan_restore())
    assert found(root) == before
    assert not (root / "etc/rancher/k3s/vcuda").exists()
    assert host.plan_restore() == []


def test_settings_that_were_not_there(tmp_path: Path) -> None:
    """k3s needs no config.yaml; ours then goes with us. Profiling stays off, as k3s has
    it, which a configuration would turn on again.
    """
    config = settings_of(tmp_path)
    assert HostFiles(tmp_path).read(FILE.path) == (
        b"kube-scheduler-arg:\n- config=/etc/rancher/k3s/vcuda/scheduler.yaml\n"
    )
    assert config["enableProfiling"] is False
    kubeconfig = "/var/lib/rancher/k3s/server/cred/scheduler.kubeconfig"
    assert config["clientConnection"] == {"kubeconfig": kubeconfig}
    host = scheduler(tmp_path)
    host.apply(host.plan_restore())
    assert found(tmp_path) == {}
    write(tmp_path, FILE.path, "data-dir: /data/k3s/\n")
    kubeconfig = "/data/k3s/server/cred/scheduler.kubeconfig"
    config = settings_of(tmp_path, "/data/k3s")
    assert config["clientConnection"]["kubeconfig"] == kubeconfig


def test_settings_changed_meanwhile(root: Path) -> None:
    host = scheduler(root)
    host.apply(host.plan())
    config = root / FILE.path.lstrip("/")
    config.write_text(config.read_text().replace("site=12", "site=13"))
    host.apply(host.plan_restore())
    golden = (GOLDEN / "before" / FILE.path.lstrip("/")).read_text()
    assert config.read_text() == golden.replace("site=12", "site=13")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "kube-scheduler-arg:\n- OURS\n"),
        ("# only\n", "# only\nkube-scheduler-arg:\n- OURS\n"),
        ("--- # only\n", "--- # only\nkube-scheduler-arg:\n- OURS\n"),
        ("\ufeff# only\n", "\ufeff# only\nkube-scheduler-arg:\n- OURS\n"),
        ("---\nkube-scheduler-arg:\n", "---\nkube-scheduler-arg:\n- OURS\n"),
        ("a: b # c\n# end\n", "a: b # c\nkube-scheduler-arg:\n- OURS\n# end\n"),
        ("kube-scheduler-arg: v=2 # x\n", "kube-scheduler-arg: [v=2, OURS] # x\n"),
        ("kube-scheduler-arg: [v=2]\n", 'kube-scheduler-arg: [v=2, "OURS"]\n'),
        ("kube-scheduler-arg:\na: b\n", "kube-scheduler-arg:\n- OURS\na: b\n"),
        (
            "kube-scheduler-arg:\n  - config=/own\n",
            "kube-scheduler-arg:\n  - config=/own\n  - OURS\n",
        ),
        ("kube-scheduler-arg+:\n- v=2\n", "kube-scheduler-arg+:\n- v=2\n- OURS\n"),
        ("kube-scheduler-arg+: v=2\n", "kube-scheduler-arg+: [v=2, OURS]\n"),
        (
            "kube-scheduler-arg: [v=2]\nkube-scheduler-arg+: [config=/own]\n",
            'kube-scheduler-arg: [v=2]\nkube-scheduler-arg+: [config=/own, "OURS"]\n',
        ),
        (
            "kube-scheduler-arg+: [v=3]\nkube-scheduler-arg: v=2\n",
            "kube-scheduler-arg+: [v=3]\nkube-scheduler-arg: [v=2, OURS]\n",
        ),
    ],
)
def test_forms_of_the_argument(before: str, after: str) -> None:
    wanted = after.replace("OURS", f"config={OURS.config}")
    assert FILE.edit(before, OURS) == wanted
    assert FILE.edit(wanted, OURS) == wanted
    assert FILE.is_edited(wanted, OURS)
    assert FILE.former_setup(FILE.without_gpushare(wanted, OURS)) == FILE.former_setup(
        before
    )


QUOTED = 'kube-scheduler-arg: ["v=2", OURS]'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("kube-scheduler-arg: ~ # c\na: b\n", "kube-scheduler-arg: [OURS] # c\na: b\n"),
        ("kube-scheduler-arg+: null\n", "kube-scheduler-arg+: [OURS]\n"),
        ('kube-scheduler-arg: ""\n', "kube-scheduler-arg: [OURS]\n"),
        ("kube-scheduler-arg: v=2 # c\n", "kube-scheduler-arg: [v=2, OURS] # c\n"),
        ("kube-scheduler-arg: &v v=2\n", "kube-scheduler-arg: [&v v=2, OURS]\n"),
        ("kube-scheduler-arg:\n  v=2\n", "kube-scheduler-arg:\n  [v=2, OURS]\n"),
        (
            "kube-scheduler-arg: feature-gates=A=true,B=true\n",
            'kube-scheduler-arg: ["feature-gates=A=true,B=true", OURS]\n',
        ),
        ("kube-scheduler-arg: >-\n  v=2\n\n# c\n", f"{QUOTED}\n\n# c\n"),
        ("kube-scheduler-arg: |-\n  v=2\na: b\n", f"{QUOTED}\na: b\n"),
        ("kube-scheduler-arg: >-\r\n  v=2\r\na: b\r\n", f"{QUOTED}\r\na: b\r\n"),
        (
            "kubelet-arg: &a v=2\nkube-scheduler-arg: *a # c\n",
            f"kubelet-arg: &a v=2\n{QUOTED} # c\n",
        ),
        (
            "kubelet-arg: &a\n- v=2\nkube-scheduler-arg: *a\na: b\n",
            f"kubelet-arg: &a\n- v=2\n{QUOTED}\na: b\n",
        ),
        ("{}", '{"kube-scheduler-arg": ["OURS"]}'),
        ('{"a": ["b"]}\n', '{"a": ["b"], "kube-scheduler-arg": ["OURS"]}\n'),
        (
            '{\n\t"kube-scheduler-arg": "v=2",\n\t"a": 1\n}\n',
            '{\n\t"kube-scheduler-arg": ["v=2", "OURS"],\n\t"a": 1\n}\n',
        ),
        (
            '{"kube-scheduler-arg": ["v=2"], "a": 1}\n',
            '{"kube-scheduler-arg": ["v=2", "OURS"], "a": 1}\n',
        ),
    ],
)
@pytest.mark.parametrize("again", [False, True])
def test_forms_there_and_back(
    tmp_path: Path, before: str, after: str, again: bool
) -> None:
    """Also where somebody has edited another place meanwhile, as the backup tells."""
    write(tmp_path, FILE.path, before)
    host = scheduler(tmp_path)
    host.apply(host.plan())
    edited = after.replace("OURS", f"config={OURS.config}")
    assert (HostFiles(tmp_path).read(FILE.path) or b"").decode() == edited
    assert scheduler(tmp_path).plan() == []
    write(tmp_path, FILE.path, f"{edited}# more")
    if again:
        host.apply(host.plan())
    host.apply(host.plan_restore())
    assert (HostFiles(tmp_path).read(FILE.path) or b"").decode() == f"{before}# more"


@pytest.mark.parametrize(
    ("before", "edits", "after"),
    [
        # The alias has lost its anchor, or means something else.
        ("a: &v v=2\nARG: *v\n", {"&v ": ""}, 'a: v=2\nARG: ["v=2"]\n'),
        ("a: &v v=2\nARG: *v\n", {"&v v=2": "&v b"}, 'a: &v b\nARG: ["v=2"]\n'),
        ('{"ARG": null, "a": 1}\n', {"1": "2"}, '{"a": 2}\n'),
        # Somebody has changed the arguments, or has written a list.
        ("ARG: v=2\n", {"v=2": "v=3"}, "ARG: [v=3]\n"),
        ("ARG: v=2\n", {"[v=2, ": "\n- v=2\n- ", "]": ""}, "ARG: \n- v=2\n"),
        ("ARG: [v=2]\n", {"kube": "a: b\nkube"}, "a: b\nARG: [v=2]\n"),
    ],
)
def test_a_form_that_no_longer_fits(
    tmp_path: Path, before: str, edits: dict[str, str], after: str
) -> None:
    """The arguments then stay as they are now, without gpushare's."""
    write(tmp_path, FILE.path, before.replace("ARG", "kube-scheduler-arg"))
    host = scheduler(tmp_path)
    host.apply(host.plan())
    text = (HostFiles(tmp_path).read(FILE.path) or b"").decode()
    for old, new in edits.items():
        text = text.replace(old, new.replace("ARG", "kube-scheduler-arg"))
    write(tmp_path, FILE.path, text)
    host.apply(host.plan_restore())
    restored = (HostFiles(tmp_path).read(FILE.path) or b"").decode()
    assert restored == after.replace("ARG", "kube-scheduler-arg")


def test_another_key_that_stands_twice(tmp_path: Path) -> None:
    """It does not matter for kube-scheduler; the last one counts, as in k3s."""
    write(tmp_path, FILE.path, "data-dir: /other\ndata-dir: /data\n")
    config = settings_of(tmp_path, "/data")
    kubeconfig = "/data/server/cred/scheduler.kubeconfig"
    assert config["clientConnection"]["kubeconfig"] == kubeconfig


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a", "is not a mapping"),
        ("a: [", "is not YAML"),
        ("kube-scheduler-arg: 5\n", "neither a string nor a list"),
        ("kube-scheduler-arg: [{a: b}]\n", "neither a string nor a list"),
        ("kube-scheduler-arg+: 5\n", "+ that is neither a string nor a list"),
        ("disable-scheduler: true\n", "disable-scheduler"),
        (
            "kube-scheduler-arg: v=2\na: b\nkube-scheduler-arg: v=3\n",
            "kube-scheduler-arg more than once (lines 1, 3), and k3s uses only the",
        ),
        (
            "kube-scheduler-arg+: v=2\nkube-scheduler-arg+: [v=3]\n",
            "kube-scheduler-arg+ more than once (lines 1, 2), and k3s adds them all",
        ),
        # An edit would change another setting too.
        ("kube-scheduler-arg: &a [v=2]\nkubelet-arg: *a\n", "one argument a line"),
    ],
)
def test_settings_that_are_refused(tmp_path: Path, text: str, words: str) -> None:
    write(tmp_path, FILE.path, text)
    assert refused(tmp_path).startswith(FILE.path)
    assert words in refused(tmp_path)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (f"{FOLDER}/config.yaml.d/10-more.yaml", "kube-scheduler-arg: [v=2]\n"),
        (f"{FOLDER}/config.yaml.d/x.yml", "kube-scheduler-arg+: [config=/own]\n"),
        (f"{FOLDER}/config.yaml.d/10-MORE.YAML", "kube-scheduler-arg: [v=2]\n"),
        (
            "/etc/systemd/system/k3s.service",
            "ExecStart=/usr/bin/k3s server \\\n  '--kube-scheduler-arg=config=/own'\n",
        ),
        (
            "/etc/systemd/system/k3s.service.d/own.conf",
            "ExecStart=/usr/bin/k3s server --kube-scheduler-arg config=/own\n",
        ),
    ],
)
def test_set_elsewhere(tmp_path: Path, path: str, text: str) -> None:
    write(tmp_path, path, text)
    assert path in refused(tmp_path)
    assert "overrules" in refused(tmp_path)


UNIT = "/etc/systemd/system/k3s.service"
MORE = f"{FOLDER}/config.yaml.d"
EXEC = "ExecStartPre=/bin/sh -c true\nExecStart=/usr/bin/k3s \\\n  server \\\n"


@pytest.mark.parametrize(
    "files",
    [
        {
            f"{MORE}/10.yaml": "data-dir: /other\n",
            f"{MORE}/20.yaml": "data-dir: /data\n",
        },
        {
            f"{MORE}/10.yaml": "data-dir: /other\n",
            UNIT: f"{EXEC}\t'--data-dir' '/data'\n",
        },
        {UNIT: f"#ExecStart=k3s server -d /other\n{EXEC}  -d /data \\\n --debug\n"},
        {f"{UNIT}.d/10.conf": "ExecStart=/usr/bin/k3s server --data-dir=/data/\n"},
        {"/etc/init.d/k3s": '[ -d /other ]\ncommand_args="server --data-dir /data"\n'},
    ],
    ids=["drop-ins", "unit", "short", "drop-in of the unit", "openrc"],
)
def test_data_dir_that_is_set_elsewhere(tmp_path: Path, files: dict[str, str]) -> None:
    """The last one counts: config.yaml, its drop-ins by name, the service's flags."""
    write(tmp_path, FILE.path, "data-dir: /first\n")
    for path, text in files.items():
        write(tmp_path, path, text)
    kubeconfig = "/data/server/cred/scheduler.kubeconfig"
    config = settings_of(tmp_path, "/data")
    assert config["clientConnection"]["kubeconfig"] == kubeconfig


@pytest.mark.parametrize(
    ("own", "path", "text", "disabled"),
    [
        ("", f"{MORE}/a.yaml", "disable-scheduler: true\n", True),
        ("", UNIT, f"{EXEC}  '--disable-scheduler' \\\n  '--debug'\n", True),
        ("true", UNIT, f"{EXEC} --debug\n", True),
        ("true", f"{MORE}/a.yaml", "disable-scheduler: false\n", False),
        ("true", UNIT, f"{EXEC}  --disable-scheduler=false\n", False),
    ],
)
def test_scheduler_that_is_disabled(
    tmp_path: Path, own: str, path: str, text: str, disabled: bool
) -> None:
    write(tmp_path, FILE.path, f"disable-scheduler: {own}\n")
    write(tmp_path, path, text)
    plan = scheduler(tmp_path).plan()
    assert isinstance(plan, Obstacle) is disabled
    assert not disabled or "says disable-scheduler" in str(plan)


def test_kubeconfig_that_is_not_there(tmp_path: Path) -> None:
    """k3s would not come up again; so nothing is written."""
    write(tmp_path, FILE.path, "data-dir: /data\n")
    before = found(tmp_path)
    words = refused(tmp_path)
    assert words.startswith("/data/server/cred/scheduler.kubeconfig, ")
    assert "start k3s once" in words
    assert found(tmp_path) == before


def test_arguments_elsewhere_are_copied(tmp_path: Path) -> None:
    """A configuration makes kube-scheduler ignore them."""
    write(tmp_path, f"{MORE}/a.yaml", "kube-scheduler-arg+: [kube-api-qps=9]\n")
    write(tmp_path, UNIT, f"{EXEC} --kube-scheduler-arg=leader-elect=false\n")
    config = settings_of(tmp_path)
    assert config["clientConnection"]["qps"] == 9
    assert config["leaderElection"] == {"leaderElect": False}


def test_elsewhere_and_harmless(tmp_path: Path) -> None:
    more = f"{FOLDER}/config.yaml.d"
    write(tmp_path, f"{more}/a.yaml", "kube-scheduler-arg+: [v=2]\n")
    write(tmp_path, f"{more}/a.yaml.bak", "kube-scheduler-arg: [v=2]\n")
    write(
        tmp_path, "/etc/systemd/system/k3s-agent.service", "--kube-scheduler-arg config"
    )
    write(tmp_path, "/etc/systemd/system/k3s.service.d/x.conf", "")
    assert not isinstance(scheduler(tmp_path).plan(), Obstacle)


@pytest.mark.parametrize(
    "text",
    [
        "kube-scheduler-arg: 5\n",
        "kube-scheduler-arg: {v: 2}\n",
        "a: 1\n---\n",
        "kube-scheduler-arg+: v=2\nkube-scheduler-arg+: v=3\n",
    ],
)
def test_a_drop_in_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    """k3s would take it in place of gpushare's argument, and say nothing."""
    path = f"{FOLDER}/config.yaml.d/x.yaml"
    write(tmp_path, path, text)
    assert refused(tmp_path).startswith(f"{path} ")
    assert f"k3s reads it after {FILE.path}" in refused(tmp_path)


def test_another_file_of_settings(tmp_path: Path) -> None:
    write(tmp_path, UNIT, f"{EXEC} --config /etc/k3s.yaml\n")
    assert f"k3s does not read {FILE.path}" in refused(tmp_path)
    write(tmp_path, UNIT, f"{EXEC} --config={FILE.path}\n")
    assert not isinstance(scheduler(tmp_path).plan(), Obstacle)


ENVIRONMENTS = {
    "/etc/systemd/system/k3s.service.env": "{}\n",
    "/etc/systemd/system/k3s.service": f"{EXEC}\nEnvironment='A=b' \"{{}}\"\n",
    "/etc/systemd/system/k3s.service.d/own.conf": "[Service]\nEnvironment={}\n",
    "/usr/local/lib/systemd/system/k3s.service": "Environment={}\n",
    "/etc/default/k3s": "A=b\n{}\n",
    "/etc/sysconfig/k3s": "export {}\n",
    "/etc/rancher/k3s/k3s.env": "{}\n",
    "/etc/conf.d/k3s": "export {}\n",
}


def test_variables_of_a_service_of_openrc(tmp_path: Path) -> None:
    """Its script reads those of the whole host, too, and those of its own name."""
    write(tmp_path, "/etc/environment", "K3S_CONFIG_FILE=/etc/k3s.yaml\n")
    assert not isinstance(scheduler(tmp_path).plan(), Obstacle)
    write(tmp_path, "/etc/init.d/k3s-lab", EXEC)
    assert refused(tmp_path).startswith("/etc/environment sets K3S_CONFIG_FILE=")
    HostFiles(tmp_path).remove("/etc/environment")
    own = "/etc/rancher/k3s/k3s-lab.env"
    write(tmp_path, own, "K3S_CONFIG_FILE=/etc/k3s.yaml\n")
    assert refused(tmp_path).startswith(f"{own} sets K3S_CONFIG_FILE=")


@pytest.mark.parametrize("path", [f"{UNIT}.bak", f"{UNIT}.d/own.conf.old", f"{UNIT}~"])
def test_a_copy_of_a_service_does_not_count(tmp_path: Path, path: str) -> None:
    """systemd reads units and drop-ins by their endings."""
    write(
        tmp_path, path, f"{EXEC} --config=/etc/k3s.yaml\nEnvironment=K3S_DATA_DIR=/d\n"
    )
    assert not isinstance(scheduler(tmp_path).plan(), Obstacle)


def test_a_file_of_variables_that_a_unit_names(tmp_path: Path) -> None:
    """Whatever its folder; systemd lets it win over the unit's own variables."""
    files = HostFiles(tmp_path)
    unit = "[Service]\nEnvironment=K3S_NODE_NAME=unit\n"
    write(tmp_path, "/run/systemd/system/k3s-a.service", unit)
    assert k3s_node_name(files) == "unit"
    # An operator's unit wins over one of a package.
    write(
        tmp_path, "/usr/lib/systemd/system/k3s-a.service", unit.replace("unit", "pkg")
    )
    assert k3s_node_name(files) == "unit"
    for name, file in (
        ("=-/opt/k3s.env", "k3s.env"),
        (" = -/opt/%N.env", "k3s.env"),
        ("=/opt/%p.*", "k3s.conf"),
        ("=/opt/%n.env", "k3s.service.env"),
    ):
        write(tmp_path, UNIT, f"{unit}EnvironmentFile{name}\n{EXEC}\n")
        write(tmp_path, f"/opt/{file}", "K3S_NODE_NAME=file\n")
        assert k3s_node_name(files) == "file"
        write(tmp_path, f"/opt/{file}", "K3S_CONFIG_FILE=/etc/k3s.yaml\n")
        assert refused(tmp_path).startswith(f"/opt/{file} sets K3S_CONFIG_FILE=")
        files.remove(f"/opt/{file}")


@pytest.mark.parametrize("path", ENVIRONMENTS)
def test_variables_of_k3s(tmp_path: Path, path: str) -> None:
    """They count where no flag and no file says more; a comment is none."""
    form = ENVIRONMENTS[path]
    write(tmp_path, path, form.format("K3S_CONFIG_FILE=/etc/k3s.yaml"))
    words = f"{path} sets K3S_CONFIG_FILE=/etc/k3s.yaml, so k3s does not read"
    assert refused(tmp_path).startswith(words)
    for harmless in (f"K3S_CONFIG_FILE={FILE.path}", "K3S_CONFIG_FILE="):
        write(tmp_path, path, form.format(harmless))
        assert not isinstance(scheduler(tmp_path).plan(), Obstacle)
    write(tmp_path, path, "# K3S_CONFIG_FILE=/etc/k3s.yaml\n; K3S_NODE_NAME=b\n")
    assert not isinstance(scheduler(tmp_path).plan(), Obstacle)
    write(tmp_path, path, form.format("K3S_DATA_DIR=/data"))
    assert refused(tmp_path).startswith("/data/server/cred/scheduler.kubeconfig")
    write(tmp_path, path, form.format("K3S_NODE_NAME=edge"))
    files = HostFiles(tmp_path)
    assert k3s_node_name(files) == "edge"
    write(tmp_path, FILE.path, "node-name: own\n")
    assert k3s_node_name(files) == "own"
    write(tmp_path, "/etc/init.d/k3s", "k3s server --node-name=flag\n")
    assert k3s_node_name(files) == "flag"


def test_restart_is_said(root: Path) -> None:
    """Without leave nobody restarts k3s: the command is told, and nothing is proved."""
    heard: list[str] = []
    host = scheduler(root)
    host.apply(host.plan())
    assert host.wait(heard.append) == ""
    assert heard == [
        "k3s reads this file only at its start. Now run: systemctl restart k3s"
    ]
    assert host.probe() == ""


def test_restart_is_done(root: Path) -> None:
    write(root, "/etc/systemd/system/k3s-edge.service", "")
    write(root, "/etc/systemd/system/k3s-agent.service", "")
    ran: list[object] = []
    host = scheduler(root, lambda command: ran.append(command) or "")
    host.apply(host.plan())
    for _ in range(2):
        assert host.wait(lambda _: None) == ""
        assert ran == [("systemctl", "restart", "k3s-edge")]


def test_restart_fails_and_is_rolled_back(root: Path) -> None:
    before = found(root)
    host = scheduler(root, lambda _: "Job for k3s.service failed")
    host.apply(host.plan())
    why = "systemctl restart k3s: Job for k3s.service failed"
    assert host.wait(lambda _: None) == why
    host.roll_back()
    assert found(root) == before
    assert host.wait(lambda _: None) == why


def test_service_of_openrc(tmp_path: Path) -> None:
    write(tmp_path, "/etc/init.d/k3s", "")
    assert restart_command(HostFiles(tmp_path)) == ("rc-service", "k3s", "restart")
