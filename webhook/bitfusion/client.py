"""Put a stand-in for the ``bitfusion`` program into pods that call it. Pure.

Its text is in an annotation of the pod, and a downwardAPI volume makes it a file in the
container. So nothing has to be installed on nodes or in namespaces.
"""

import re
from collections.abc import Iterable

from gpushare.kube import names
from gpushare.kube.cluster import Json
from webhook.bitfusion import resources

VOLUME = "vcuda-bitfusion-client"
PATH = "/usr/bin/bitfusion"

SCRIPT = """\
#!/bin/sh
# Stands in for the Bitfusion client: this container has its share of a local card, so a
# program is simply run. https://kubernetes.io/docs/concepts/storage/volumes/#downwardapi
say() { echo "bitfusion: $*" >&2; }
run() {
  while [ $# -gt 0 ]; do
    case $1 in
      --) shift; break ;;
      -n|-p|-m|-l|-s|--num_gpus|--num-gpus|--partial|--memory|--filter|\\
--server_list|--server-list|--servers) shift; [ $# -eq 0 ] || shift ;;
      -[npmls]?*|--*=*) shift ;;
      -*) past "$@"; return ;;
      *) break ;;
    esac
  done
  program "$@"
}
past() {
  option=$1
  for word in "$@"; do
    shift
    if [ "$word" = -- ]; then program "$@"; return; fi
  done
  say "unknown option $option; write -- between the options and the program"
  exit 2
}
program() {
  if [ $# -eq 0 ]; then say "run: no program was given"; exit 2; fi
  case $1 in
    *[[:space:]]*) [ -x "$1" ] || { [ $# -eq 1 ] && exec /bin/sh -c "$1"; } ;;
  esac
  exec "$@"
}
case ${1-} in
  run) shift; run "$@" ;;
  client) shift; run "$@" ;;
  smi) shift; exec nvidia-smi "$@" ;;
  list_gpus|list-gpus) exec nvidia-smi -L ;;
  request_gpus|release_gpus) say "$1: nothing to do, the share lasts with the pod" ;;
  health|localhealth) echo "healthy: cards are local, there is no server" ;;
  version|--version|-v) echo "stand-in for the Bitfusion client, cards are local" ;;
  ''|help|--help|-h) say "knows run, client, smi, list_gpus, health, version" ;;
  *) say "there is no $1 here: cards are local"; exit 2 ;;
esac
"""
"""POSIX sh. ``run`` replaces itself by the program, for its signals and exit code."""

# As the client image's own recipe named its folders; 450 of seed 004 is 4.5.0.
_PACKAGES = {
    ("ubuntu18", "401"): "bitfusion-client-ubuntu1804_4.0.1-5_amd64.deb",
    ("ubuntu20", "401"): "bitfusion-client-ubuntu2004_4.0.1-5_amd64.deb",
    ("centos7", "401"): "bitfusion-client-centos7-4.0.1-5.x86_64.rpm",
    ("centos8", "401"): "bitfusion-client-centos8-4.0.1-5.x86_64.rpm",
    ("ubuntu18", "450"): "bitfusion-client-ubuntu1804_4.5.0-4_amd64.deb",
    ("ubuntu20", "450"): "bitfusion-client-ubuntu2004_4.5.0-4_amd64.deb",
    ("centos7", "450"): "bitfusion-client-centos7-4.5.0-4.x86_64.rpm",
    ("centos8", "450"): "bitfusion-client-centos8-4.5.0-4.x86_64.rpm",
}
_FOLDER = re.compile(r"/bitfusion/[\w.+-]+/usr/bin(?![\w.-])", re.ASCII)
_CALLED = re.compile(r"(?<![\w.-])bitfusion(?![\w./-])")


def packed_folder(annotations: Json) -> str:
    """Return the folder of the client that annotations describe; empty if unknown."""
    described = (
        annotations.get(resources.OS) or "",
        annotations.get(resources.VERSION) or "",
    )
    return _PACKAGES.get(described, "")


def calls_client(container: Json) -> bool:
    """Tell whether the container's command or args call the program."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    return any(_CALLED.search(word) for word in words)


def mount_stand_in(pod: Json, containers: Iterable[Json]) -> None:
    """Mount the stand-in where the containers look for the program."""
    annotations = pod["metadata"]["annotations"]
    spec = pod["spec"]
    volumes = list(spec.get("volumes") or ())
    volume = _free_name({entry.get("name") for entry in volumes})
    spec["volumes"] = [*volumes, _volume(volume)]
    folder = packed_folder(annotations)
    annotations[names.BITFUSION_CLIENT] = SCRIPT
    for container in containers:
        mounts = list(container.get("volumeMounts") or ())
        taken = {entry.get("mountPath") for entry in mounts}
        container["volumeMounts"] = mounts + [
            {"name": volume, "mountPath": path, "subPath": "bitfusion"}
            for path in _paths(container, folder)
            if path not in taken
        ]


def _paths(container: Json, folder: str) -> list[str]:
    """Return the paths of the program, with those in the container's own words."""
    texts = [*(container.get("command") or ()), *(container.get("args") or ())]
    texts += [variable.get("value") or "" for variable in container.get("env") or ()]
    folders = [match for text in texts for match in _FOLDER.findall(text)]
    if folder:
        folders.append(f"/bitfusion/{folder}/usr/bin")
    return list(dict.fromkeys([PATH, *(f"{folder}/bitfusion" for folder in folders)]))


def _volume(name: str) -> Json:
    key = f"metadata.annotations['{names.BITFUSION_CLIENT}']"
    item = {"path": "bitfusion", "fieldRef": {"apiVersion": "v1", "fieldPath": key}}
    return {"name": name, "downwardAPI": {"items": [item], "defaultMode": 0o555}}


def _free_name(taken: set[object]) -> str:
    name, number = VOLUME, 1
    while name in taken:
        number += 1
        name = f"{VOLUME}-{number}"
    return name
