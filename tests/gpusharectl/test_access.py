"""Without a reachable cluster each command ends with one sentence and the next step.

With a cluster that answers: ``tests/controlplane/test_objects.py``.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gpusharectl.access import CannotReachError, access_options, reach

NOBODY = 65534
TWO_CONTEXTS = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
contexts:
- {name: home, context: {cluster: c, user: u}}
- {name: away, context: {cluster: c, user: u}}
"""


def refusal(
    option: str | None = None,
    context: str | None = None,
    *,
    places: tuple[Path, ...] = (),
    **environ: str,
) -> str:
    """The sentence, of which there is one line."""
    with pytest.raises(CannotReachError) as caught:
        reach(option, context, environ=environ, places=places)
    assert "\n" not in caught.value.message
    return caught.value.message


@contextmanager
def as_nobody(path: Path) -> Iterator[None]:
    """With rights to nothing that is root's."""
    if os.geteuid() != 0:
        path.chmod(0)
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config"
    path.write_text(TWO_CONTEXTS)
    return path


def test_what_is_said(config: Path, tmp_path: Path) -> None:
    assert refusal(places=(tmp_path / "a", tmp_path / "b")) == (
        f"no kubeconfig found (searched: $KUBECONFIG, {tmp_path}/a, {tmp_path}/b); "
        "name one with --kubeconfig, or run this on a control-plane host as root"
    )
    missing = str(tmp_path / "none")
    # Named by option or environment, no other is taken in its place.
    fix = f"there is no file {missing}; name a kubeconfig"
    assert refusal(missing) == f"--kubeconfig: {fix}"
    assert refusal(KUBECONFIG=missing) == f"$KUBECONFIG: {fix}"
    assert f"{tmp_path} cannot be read" in refusal(str(tmp_path))
    has = "(it has home, away); choose one with --context"
    assert refusal(str(config), "hoem") == f"{config} has no context 'hoem' {has}"
    assert refusal(str(config)) == f"{config} has no current context {has}"
    config.write_text(TWO_CONTEXTS.replace("cluster: c,", "cluster: gone,"))
    said = refusal(str(config), "home")
    assert "gone" in said
    assert said.endswith("; correct the file, or name another with --kubeconfig")
    # As ``kubectl config`` leaves one when all is deleted.
    config.write_text("{}")
    assert "has no current context (it has none); choose one" in refusal(str(config))


def test_a_file_that_may_not_be_read(config: Path) -> None:
    """Found by itself or named: the next one would be another cluster."""
    with as_nobody(config):
        named, found = refusal(str(config)), refusal(places=(config,))
    for said, way in ((named, "--kubeconfig"), (found, "the kubeconfig")):
        assert said == (
            f"{way}: this user may not read {config}; run this as root, or name "
            "another with --kubeconfig"
        )


@pytest.mark.parametrize(
    "text", ["", "{{{", "- a\n- b", "just words", "contexts: 5", "contexts: [5]", "\0"]
)
def test_a_file_that_is_no_kubeconfig(config: Path, text: str) -> None:
    config.write_text(text)
    said = refusal(str(config))
    assert said.startswith(f"cannot connect to the API server with {config}: "), said
    assert said.endswith("; correct the file, or name another with --kubeconfig")


def test_nobody_answers(config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"https://127.0.0.1:{server.getsockname()[1]}"
    config.write_text(TWO_CONTEXTS.replace("https://127.0.0.1:1", url))
    said = refusal(str(config), "away")
    assert said.startswith(f"{url} cannot be reached with {config}, context away: ")
    assert said.endswith("choose another with --kubeconfig or --context")


def test_of_several_files_some_may_be_missing(config: Path, tmp_path: Path) -> None:
    """As kubectl has it: they are read as one."""
    second = tmp_path / "second"
    second.write_text("current-context: home")
    several = os.pathsep.join([str(config), str(tmp_path / "none"), str(second)])
    assert "context home" in refusal(KUBECONFIG=several)
    assert "context away" in refusal(None, "away", KUBECONFIG=several)


def test_a_named_one_wins(config: Path, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("option", "variable", "first", "second")]
    for file in files:
        file.write_text(f"{TWO_CONTEXTS}current-context: home")
    option, variable, *places = map(str, files)
    found = tuple(map(Path, places))
    assert option in refusal(option, KUBECONFIG=variable, places=found)
    assert variable in refusal(KUBECONFIG=variable, places=found)
    assert places[0] in refusal(places=found)


def test_the_options(config: Path) -> None:
    @click.command
    @access_options
    def look(kubeconfig: str | None, context: str | None) -> None:
        reach(kubeconfig, context)

    done = CliRunner().invoke(look, ["--kubeconfig", str(config), "--context", "x"])
    assert done.exit_code == 1
    assert done.output.startswith(f"Error: {config} has no context 'x'")
