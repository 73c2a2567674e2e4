"""kube-scheduler's manifest: edited, taken back, refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gpusharectl.installer.kube_scheduler.host_files import Obstacle
from gpusharectl.installer.kube_scheduler.static_pod import (
    FORMER,
    Additions,
    SchedulerPod,
    edit_static_pod,
    is_static_pod_edited,
    restore_static_pod,
)

OURS = Additions("/etc/kubernetes/vcuda/scheduler.yaml", "/etc/kubernetes/vcuda", "abc")
FLAG = f"--config={OURS.config}"
GOLDEN = Path(__file__).parent / "golden"
KUBEADM = (GOLDEN / "kubeadm.yaml").read_text()
LAST_FLAG = "    - --leader-elect=true\n"
FORMER_FLAG = '    - "--config=/x.yaml" # mine\n'
MOUNTS = """\
    volumeMounts:
    - mountPath: /etc/kubernetes/scheduler.conf
      name: kubeconfig
      readOnly: true
"""


@pytest.mark.parametrize("name", ["kubeadm", "commented"])
def test_golden(name: str) -> None:
    """What kubeadm 1.36 writes, and comments, blank lines, brackets and quotes."""
    text, after = (GOLDEN / f"{name}{end}.yaml" for end in ("", "-edited"))
    assert edit_static_pod(text.read_text(), OURS) == after.read_text()


FORMS = {
    "as kubeadm writes it": KUBEADM,
    "line ends of Windows": KUBEADM.replace("\n", "\r\n"),
    "no end of the last line": KUBEADM.rstrip("\n"),
    "a byte order mark": f"\ufeff{KUBEADM}",
    "much by hand": (GOLDEN / "commented.yaml").read_text(),
    "a configuration": KUBEADM.replace(LAST_FLAG, FORMER_FLAG),
    "a configuration in two words": KUBEADM.replace(
        LAST_FLAG, "    - --config\n    - '/x.yaml'\n"
    ),
    "flags in args": KUBEADM.replace(
        "  - command:\n    - kube-scheduler\n",
        "  - command: [kube-scheduler]\n    args:\n",
    ),
    "no command": KUBEADM.replace(
        "  - command:\n    - kube-scheduler\n", "  - args:\n"
    ),
    "mounts in brackets": KUBEADM.replace(
        MOUNTS, "    volumeMounts: [{mountPath: /a, name: kubeconfig}] # one\n"
    ),
    "empty brackets": KUBEADM.replace("metadata:\n", "metadata:\n  annotations: {}\n"),
    "annotations": KUBEADM.replace(
        "metadata:\n", "metadata:\n  annotations:\n    a.b/c: d # why\n    # more\n"
    ),
    "a tab before a comment": KUBEADM.replace(
        LAST_FLAG, "    - --leader-elect=true\t# why\n"
    ),
    "no mounts": KUBEADM.replace(MOUNTS, ""),
    "no volumes": KUBEADM.split("  volumes:")[0] + "status: {}\n",
    "JSON": json.dumps(yaml.safe_load(KUBEADM), indent=1),
    "a last value of several lines": KUBEADM.replace(
        "    name: kubeconfig\nstatus", "    name: |\n      kubeconfig\n\nstatus"
    ),
}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_there_and_back(text: str) -> None:
    after = edit_static_pod(text, OURS)
    assert is_static_pod_edited(after, OURS)
    assert not is_static_pod_edited(text, OURS)
    assert edit_static_pod(after, OURS) == after
    assert edit_static_pod(after, replace(OURS, stamp="def")) == after.replace(
        "abc", "def"
    )
    assert restore_static_pod(after, OURS) == text
    assert restore_static_pod(text, OURS) == text
    found = SchedulerPod.read(after)
    assert found.on_host(OURS.config) == found.config == OURS.config
    if FORMER_FLAG in text:
        assert found.annotation(FORMER) == '"--config=/x.yaml"'
        assert f"    - {FLAG} # mine\n" in after


OWN_MOUNT = MOUNTS + "    - {mountPath: %s, name: mine}\n"
OWN_VOLUME = "  volumes:\n  - {name: mine, hostPath: {path: %s, type: Directory}}\n"


def mounting(at: str, path: str, more: str = "") -> str:
    """kubeadm's manifest with one more mount, of a path of the host."""
    text = KUBEADM.replace(MOUNTS, (OWN_MOUNT % at).replace("}\n", f"{more}}}\n"))
    return text.replace("  volumes:\n", OWN_VOLUME % path)


def mounts_of_folder(text: str) -> int:
    mounts = SchedulerPod.read(text).main["volumeMounts"]
    return [each["mountPath"].rstrip("/") for each in mounts].count(OURS.folder)


@pytest.mark.parametrize(
    "text",
    [
        mounting(OURS.folder, OURS.folder),
        mounting(f"{OURS.folder}/", f"{OURS.folder}/", ", readOnly: true"),
        mounting(OURS.folder, "/etc/kubernetes", ", subPath: vcuda"),
    ],
    ids=["the same", "with a slash", "by a subPath"],
)
def test_a_mount_of_the_folder_is_used(text: str) -> None:
    """The API server and kubelet reject a pod with two mounts of one path."""
    after = edit_static_pod(text, OURS)
    assert mounts_of_folder(after) == 1
    assert edit_static_pod(after, OURS) == after
    assert restore_static_pod(after, OURS) == text


def test_a_mount_that_was_added_beside_it_takes_its_place() -> None:
    """Somebody may mount the folder after the installation."""
    after = edit_static_pod(KUBEADM, OURS)
    both = after.replace(MOUNTS, OWN_MOUNT % OURS.folder).replace(
        "  volumes:\n", OWN_VOLUME % OURS.folder
    )
    assert mounts_of_folder(both) == 2
    assert mounts_of_folder(edit_static_pod(both, OURS)) == 1


@pytest.mark.parametrize(
    ("at", "path"),
    [
        (OURS.folder, "/srv"),
        (OURS.config, OURS.config),
        (OURS.config, "/srv/mine.yaml"),
        (f"{OURS.folder}/tls", "/srv/tls"),
    ],
)
def test_another_mount_there_is_refused(at: str, path: str) -> None:
    with pytest.raises(Obstacle, match=f"mounts something at {at}, where"):
        edit_static_pod(mounting(at, path), OURS)


words = st.from_regex(r"--[a-z][a-z-]{0,12}(=[A-Za-z0-9/.]{1,12})?", fullmatch=True)
comments = st.sampled_from(["", " # why", "  #", "\n    # below", "\n"])


@settings(max_examples=30, phases=[Phase.generate])
@given(
    flags=st.lists(st.tuples(words, comments), max_size=6),
    extra=st.lists(st.sampled_from(["a", "b", "c"]), unique=True),
    annotations=st.dictionaries(st.sampled_from("xyz"), st.text(max_size=8)),
    newline=st.sampled_from(["\n", "\r\n"]),
    end=st.sampled_from(["", "\n", "\n\n# end\n"]),
)
def test_any_manifest_there_and_back(
    flags: list[tuple[str, str]],
    extra: list[str],
    annotations: dict[str, str],
    newline: str,
    end: str,
) -> None:
    listed = "".join(f"    - {word}{comment}\n" for word, comment in flags)
    body = yaml.safe_load(KUBEADM)
    body["metadata"]["annotations"] = annotations
    body["spec"]["volumes"] += [{"name": each, "emptyDir": {}} for each in extra]
    text = yaml.safe_dump(body, allow_unicode=True).replace(
        "    - --leader-elect=true\n", listed
    )
    text = text.rstrip("\n").replace("\n", newline) + end
    after = edit_static_pod(text, OURS)
    assert restore_static_pod(after, OURS) == text
    assert SchedulerPod.read(after).config == OURS.config


REFUSED = {
    "# nothing\n": "is empty",
    "a: [\n": "is not YAML: line 2: expected",
    KUBEADM.replace(LAST_FLAG, f"{LAST_FLAG}\t# why\n"): "line 18 is indented by a tab",
    KUBEADM.replace("kind: Pod", "kind: Deployment"): "its kind is Deployment",
    f"{KUBEADM}---\n{KUBEADM}": "holds 2 documents",
    KUBEADM.replace("    name: kube-scheduler\n", "    name: other\n"): "no container",
    KUBEADM.replace(
        "    - kube-scheduler\n", "    - sh\n    - -c\n"
    ): "without a shell",
    "kind: Pod\nspec: {}\n": "without metadata",
    # Two places share the list, so an edit would change both.
    KUBEADM.replace("    volumeMounts:\n", "    volumeMounts: &them\n").replace(
        "  hostNetwork: true\n",
        "  initContainers:\n  - name: i\n    volumeMounts: *them\n",
    ): "anchors",
}


@pytest.mark.parametrize(("text", "words"), REFUSED.items(), ids=REFUSED.values())
def test_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(Obstacle, match=words):
        edit_static_pod(text, OURS)


def test_files_of_the_pod_on_the_host() -> None:
    """The longest mount that holds a path counts; a path in none is refused."""
    text = KUBEADM.replace(
        MOUNTS,
        "    volumeMounts:\n"
        "    - {mountPath: /a, name: kubeconfig}\n"
        "    - {mountPath: /a/b, name: deep, subPath: sub}\n",
    ).replace("  volumes:\n", "  volumes:\n  - {name: deep, hostPath: {path: /deep}}\n")
    found = SchedulerPod.read(text)
    assert found.on_host("/a/b/c.yaml") == "/deep/sub/c.yaml"
    assert found.on_host("/a/c.yaml") == "/etc/kubernetes/scheduler.conf/c.yaml"
    with pytest.raises(Obstacle, match="/ab/c"):
        found.on_host("/ab/c.yaml")
