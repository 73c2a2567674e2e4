"""The stand-in for Bitfusion's client, and where it is mounted."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpushare.kube.cluster import Json
from tests.webhook.bitfusion_pods import ALL, HALF, translated
from webhook.bitfusion.client import SCRIPT

SHELLS = [name for name in ("/bin/sh", "/bin/bash", "/bin/dash") if Path(name).exists()]
SMI = '#!/bin/sh\necho smi "$@"\n'


@pytest.fixture(params=SHELLS)
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    for name, text in (("bitfusion", SCRIPT), ("nvidia-smi", SMI)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o555)
    wrapper = tmp_path / "call"
    wrapper.write_text(f'#!/bin/sh\nexec {request.param} {tmp_path}/bitfusion "$@"\n')
    wrapper.chmod(0o555)
    return wrapper


def call(
    client: Path, *words: str, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    env = {"PATH": f"{client.parent}:/usr/bin:/bin"}
    how: Any = {"capture_output": True, "text": True, "timeout": 60}
    return subprocess.run([client, *words], input=stdin, env=env, check=False, **how)


@pytest.mark.parametrize(
    "options",
    [
        "-n 1 -p 0.5 --",
        "-n 1 -p 0.5",
        "-n1 -m=8000",
        "--num_gpus=1 --partial 0.5 --filter a=b",
        "-l 10.0.0.1 -s /etc/servers.conf --",
        "--new thing -q --",
        "",
    ],
)
def test_run_runs_the_rest(client: Path, options: str) -> None:
    rest = ("printf", "<%s>", "a b", "--", "-n", "")
    done = call(client, "run", *options.split(), *rest)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "<a b><--><-n><>"


def test_run_becomes_the_program(client: Path) -> None:
    run = ("run", "-n", "1", "--")
    assert call(client, *run, "sh", "-c", "exit 7").returncode == 7
    assert call(client, *run, "no-such-program").returncode == 127
    assert call(client, *run, "cat", stdin="in").stdout == "in"
    assert call(client, *run, "sh", "-c", "kill -TERM $$").returncode == -15
    assert call(client, "run", "-n", "1", "echo a; echo b").stdout == "a\nb\n"


def test_a_program_whose_name_has_blanks(client: Path) -> None:
    script = client.parent / "my app"
    script.write_text('#!/bin/sh\necho "$1"\n')
    script.chmod(0o555)
    assert call(client, "run", "-n", "1", "--", str(script), "x y").stdout == "x y\n"


@pytest.mark.parametrize(
    ("words", "code", "prints"),
    [
        ("run", 2, "no program was given"),
        ("run -n", 2, "no program was given"),
        ("run -n 1 --", 2, "no program was given"),
        ("run --new true", 2, "unknown option --new; write -- between"),
        ("token", 2, "there is no token here: cards are local"),
        ("smi", 0, "smi\n"),
        ("smi -q", 0, "smi -q\n"),
        ("list_gpus", 0, "smi -L\n"),
        ("health", 0, "healthy: cards are local, there is no server\n"),
        ("version", 0, "stand-in for the Bitfusion client, cards are local\n"),
        ("client echo x", 0, "x\n"),
        ("request_gpus -n 1", 0, ""),
        ("release_gpus", 0, ""),
        ("", 0, ""),
    ],
)
def test_the_other_words(client: Path, words: str, code: int, prints: str) -> None:
    done = call(client, *words.split())
    assert done.returncode == code
    assert prints in done.stderr if code else prints == done.stdout


def test_it_is_small_and_plain() -> None:
    """It lies in an annotation of each such pod, of which there are 256 KiB in all."""
    assert SCRIPT.isascii()
    assert SCRIPT.startswith("#!/bin/sh\n")
    assert len(SCRIPT) < 4096


INJECTION = {**ALL, "auto-management/bitfusion": "injection"}
CLIENT = "baidu.com/vcuda-bitfusion-client"
USUAL = "/usr/bin/bitfusion"
PACKED = "/bitfusion/bitfusion-client-ubuntu1804_4.5.0-4_amd64.deb/usr/bin/bitfusion"


def injected(annotations: Json = INJECTION, **container: object) -> Json:
    one = {"resources": HALF, **container}
    found = translated({"annotations": annotations, "containers": [one]})
    assert found.denials == ()
    return found.pod


def paths(a_pod: Json) -> list[str]:
    (one,) = a_pod["spec"]["containers"]
    return [mount["mountPath"] for mount in one["volumeMounts"]]


def test_where_the_containers_own_words_look_for_it() -> None:
    found = injected(
        command=["/bitfusion/a_1.deb/usr/bin/bitfusion run -n 1 -- x"],
        args=["/bitfusion/a_1.deb/usr/bin/bitfusion"],
        env=[
            {"name": "PATH", "value": "/bitfusion/b-2.rpm/usr/bin:/bin"},
            {"name": "ELSE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "NOT", "value": "/bitfusion/usr/bin /bitfusion/../usr/binary"},
        ],
    )
    assert paths(found) == [
        USUAL,
        "/bitfusion/a_1.deb/usr/bin/bitfusion",
        "/bitfusion/b-2.rpm/usr/bin/bitfusion",
        PACKED,
    ]


def test_a_file_of_the_pods_own_stays() -> None:
    """Two mounts at one place the API server refuses."""
    own = {"name": "tools", "mountPath": USUAL}
    found = injected({"auto-management/bitfusion": "injection"}, volumeMounts=[own])
    (one,) = found["spec"]["containers"]
    assert one["volumeMounts"] == [own]


def test_a_volume_of_that_name_stays() -> None:
    taken: Json = {"name": "vcuda-bitfusion-client", "emptyDir": {}}
    one = {"resources": HALF}
    short = {"annotations": INJECTION, "volumes": [taken], "containers": [one]}
    spec = translated(short).pod["spec"]
    assert spec["volumes"][0] == taken
    assert spec["volumes"][1]["name"] == "vcuda-bitfusion-client-2"
    mounts = spec["containers"][0]["volumeMounts"]
    assert {mount["name"] for mount in mounts} == {"vcuda-bitfusion-client-2"}


def test_in_mode_all_only_where_it_is_called() -> None:
    plain = injected(ALL, command=["python a.py"])
    assert CLIENT not in plain["metadata"]["annotations"]
    assert "volumes" not in plain["spec"]
    calling = injected(ALL, command=["bitfusion run -n 1 -- a; bitfusion health"])
    (one,) = calling["spec"]["containers"]
    assert one["command"] == ["/bin/bash", "-c", "a; bitfusion health"]
    assert paths(calling) == [USUAL, PACKED]


@pytest.mark.parametrize(
    ("own", "then"),
    [
        ({"baidu.com/vcuda-models": "A10"}, "A10"),
        ({"baidu.com/vcuda-containers": "together"}, "together"),
        ({CLIENT: "#!/bin/sh\nexec evil"}, SCRIPT),
    ],
    ids=["models", "containers", "client"],
)
def test_annotations_of_the_pods_own_stay(own: dict[str, str], then: str) -> None:
    """A filter never widens nor replaces them; only the stand-in is always ours."""
    wish = {"bitfusion-client/filter": "device.name=T4 device.id=GPU-9f12f917"}
    containers = [{"resources": HALF}, {"name": "b", "resources": HALF}]
    short = {"annotations": INJECTION | own | wish, "containers": containers}
    annotations = translated(short).pod["metadata"]["annotations"]
    assert annotations[next(iter(own))] == then
    assert annotations["baidu.com/vcuda-uuids"] == "GPU-9f12f917"
