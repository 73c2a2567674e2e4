"""Whose turn it is, where most pods were looked at before."""

from deviceplugin.pods import Listed
from gpushare.kube import names
from tests.builders import card, pod_json
from tests.deviceplugin.desk import Desk
from tests.deviceplugin.house import NODE

M, C = names.MEMORY, names.CORE
UNITS = frozenset(f"9f12f917-m{number:04d}" for number in range(4))


def test_who_has_all_is_looked_at_again_when_it_lacks() -> None:
    """kubelet may have forgotten it, or it is a new pod under its name."""
    desk = Desk(card())
    pod = desk.bind(pod_json("one", units=4, cores=1, node=NODE))
    finder = desk.admission._finder
    held = {"main": {C: frozenset({"9f12f917-c000"}), M: UNITS}}
    for _ in range(2):
        assert finder.find(Listed({pod.name: held}), M, 4) is None
    found = finder.find(Listed({pod.name: {"main": {}}}), M, 4)
    assert found is not None
    assert found.name == pod.name
