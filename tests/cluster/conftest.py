"""Real clusters of two kinds: with all of us in it, and one that knows nothing of us.

``tests/conftest.py`` says which files share one. Each exercise on the first kind begins
with empty nodes; whoever installs on the second takes it all away again. Its cards and
whatever else belongs to nodes may stay.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.dra_on import TEMPLATES, arbiter_on, driver_on
from tests.cluster.fresh import Before, Fresh, fresh
from tests.cluster.site import Site
from tests.nvml.build import the_stub
from tests.testbed.kubeadm import Cluster
from tests.testbed.kubeadm.appimage import app_version
from tests.testbed.kubeadm.programs import Programs


@pytest.fixture(scope="package")
def whole_site(
    cluster_programs: Programs, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """A cluster with everything of ours; its node ``cp`` has no card yet."""
    folder = tmp_path_factory.mktemp("site")
    with Cluster(cluster_programs, folder / "cluster") as cluster:
        made = Site(cluster, the_stub(), folder)
        made.install()
        made.add_cards(cluster.nodes["cp"], [])
        yield made


@pytest.fixture
def site(whole_site: Site) -> Iterator[Site]:
    """The cluster without any pod but its own; afterwards again."""
    yield whole_site
    whole_site.clear()


@pytest.fixture(scope="module")
def driver(whole_site: Site) -> Iterator[None]:
    """Cards are given to claims too, while the tests of this file run."""
    with driver_on(whole_site):
        yield


@pytest.fixture(scope="module")
def arbiter(
    whole_site: Site, driver: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """One ledger for claims and classic pods, from the first test that wants it on."""
    with arbiter_on(whole_site, tmp_path_factory.mktemp("arbiter")):
        yield


@pytest.fixture
def claims(driver: None, site: Site) -> Iterator[Site]:
    """The cluster with the driver; each test begins and ends without a template."""
    yield site
    site.clear()
    site.cluster.rest.must("DELETE", TEMPLATES)


@pytest.fixture(scope="package")
def app_image(whole_site: Site, app_archive: Path) -> str:
    """Our own image, as manifests name it; it is on every node."""
    whole_site.cluster.import_image(app_archive)
    return f"gpushare:{app_version()}"


@pytest.fixture(scope="package")
def bare(
    cluster_programs: Programs,
    app_archive: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Fresh]:
    """A cluster as kubeadm makes it, with our image on its node and its own audit."""
    folder = tmp_path_factory.mktemp("bare")
    made, archives = folder / "cluster", [app_archive]
    with Cluster(cluster_programs, made, audit=True, archives=archives) as cluster:
        yield fresh(cluster, the_stub(), folder)


@pytest.fixture(scope="module")
def before(host: Fresh) -> Before:
    """How the cluster was before the tests of this file, whose own host it is."""
    return host.tree(), host.everything()
