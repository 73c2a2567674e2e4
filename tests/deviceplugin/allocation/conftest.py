"""A plugin at work on a node of two cards."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deviceplugin.node_fixture import NodeFixture, found_card


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeFixture]:
    with NodeFixture(tmp_path, found_card(0), found_card(1)) as made:
        yield made
