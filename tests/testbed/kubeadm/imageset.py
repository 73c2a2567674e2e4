"""The images that every cluster starts with, built once into the cache."""

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.binaries import Binaries, only_builder
from tests.testbed.kubeadm.files import IMAGE_REPOSITORY
from tests.testbed.kubeadm.images import Image, write_archive
from tests.testbed.toolchain import BinariesUnavailableError

HERE = Path(__file__).parent
BUSYBOX = Path("/bin/busybox")
BASE_NAMES = ("local.test/base:1", "docker.io/nvidia/cuda:11.0-base")
"""The test image, which also answers to the name that the seed's pods ask for."""


@dataclass(frozen=True)
class ImageSet:
    """A folder of image archives."""

    folder: Path
    pause_name: str

    @property
    def all(self) -> list[Path]:
        """What a control plane needs, the pause image and the test image."""
        return sorted(self.folder.glob("*.tar"))


def ensure_images(
    cache: Path, control_plane: Binaries, node: Binaries, busybox: Path = BUSYBOX
) -> ImageSet:
    """Give the images, built now (seconds) where the cache has none of this kind."""
    names = image_names(node.path("kubeadm"))
    folder = cache / f"images-{_fingerprint(control_plane, names, busybox)}"
    if not folder.exists():
        with only_builder(cache):
            if not folder.exists():
                _build(cache, control_plane, names, busybox, folder)
    return ImageSet(folder, names["pause"])


def _build(
    cache: Path,
    control_plane: Binaries,
    names: dict[str, str],
    busybox: Path,
    folder: Path,
) -> None:
    with tempfile.TemporaryDirectory(dir=cache, prefix="unfinished-") as unfinished:
        output = Path(unfinished) / "images"
        output.mkdir()
        for name, image in _images(control_plane, names, busybox, output):
            write_archive(image, output / f"{name}.tar")
        (output / "pause").unlink()
        output.rename(folder)
    print(f"built {folder}", flush=True)


def image_names(kubeadm: str) -> dict[str, str]:
    """Ask kubeadm what it calls its images; ``etcd``, ``pause`` and so on are keys."""
    command = [kubeadm, "config", "images", "list"]
    # A version given spares it the question on the internet which one is the newest.
    told = [f"--kubernetes-version={version(kubeadm)}"]
    told += [f"--image-repository={IMAGE_REPOSITORY}"]
    names = subprocess.check_output([*command, *told], text=True).split()
    return {name.rsplit("/", 1)[1].split(":")[0]: name for name in names}


def version(kubeadm: str) -> str:
    return subprocess.check_output(
        [kubeadm, "version", "-o", "short"], text=True
    ).strip()


def base_image(busybox: Path, names: tuple[str, ...] = BASE_NAMES) -> Image:
    """Describe the test image: a shell and the usual small commands."""
    listed = subprocess.check_output([busybox, "--list"], text=True).split()
    links = {f"/bin/{name}": "busybox" for name in listed if name != "busybox"}
    files = {"/bin/busybox": busybox}
    folders = ("tmp", "root", "etc", "dev", "proc", "sys", "usr/bin")
    return Image(names, files, links, folders, command=("sh",))


def _images(
    control_plane: Binaries, names: dict[str, str], busybox: Path, folder: Path
) -> Iterator[tuple[str, Image]]:
    for name in ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"):
        program = Path(control_plane.path(name))
        inside = f"/usr/local/bin/{name}"
        yield name, Image((names[name],), {inside: program}, entrypoint=(inside,))
    pause = _compiled_pause(folder / "pause")
    yield "pause", Image((names["pause"],), {"/pause": pause}, entrypoint=("/pause",))
    yield "base", base_image(busybox)


def _compiled_pause(path: Path) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise BinariesUnavailableError("there is no C compiler", "apt-get install gcc")
    source = str(HERE / "pause.c")
    subprocess.run([compiler, "-static", "-Os", "-o", path, source], check=True)
    return path


def _fingerprint(control_plane: Binaries, names: dict[str, str], busybox: Path) -> str:
    ours = [HERE / name for name in ("images.py", "imageset.py", "pause.c")]
    content = [path.read_bytes() for path in (*ours, busybox)]
    said = [control_plane.folder.name, *sorted(names.values())]
    digest = hashlib.sha256(b"".join([*content, "\n".join(said).encode()]))
    return digest.hexdigest()[:12]
