"""From a pod's containers to its claims."""

import pytest

from gpushare.domain.model import Amount, Reason, Refusal
from gpushare.domain.request import (
    MOST_APART,
    ContainerSpec,
    Role,
    build_claims,
    peak_amount,
)
from tests.builders import claim, spec


def init(units: int, cores: int = 0, name: str = "init") -> ContainerSpec:
    return spec(name, units, cores, role=Role.INIT)


def sidecar(units: int, cores: int = 0, name: str = "side") -> ContainerSpec:
    return spec(name, units, cores, role=Role.SIDECAR)


@pytest.mark.parametrize(
    ("containers", "amount"),
    [
        pytest.param([], Amount(), id="no containers"),
        pytest.param([spec("a", 1), spec("b", 3, 5)], Amount(5, 4), id="they add up"),
        pytest.param(
            [init(1), init(3), spec("a", 2)], Amount(0, 3), id="init in turns"
        ),
        pytest.param([init(1), spec("a", 2)], Amount(0, 2), id="more than init"),
        pytest.param(
            [init(9, 1), spec("a", 2, 30)], Amount(30, 9), id="a peak of each"
        ),
        pytest.param([sidecar(2), spec("a", 3)], Amount(0, 5), id="sidecar beside"),
        pytest.param(
            [sidecar(2), init(5), spec("a", 3)], Amount(0, 7), id="earlier sidecar"
        ),
        pytest.param(
            [init(5), sidecar(2), spec("a", 3)], Amount(0, 5), id="later sidecar"
        ),
        pytest.param(
            [sidecar(2), init(1), sidecar(4), spec("a", 1)], Amount(0, 7), id="sidecars"
        ),
        pytest.param(
            [sidecar(2), init(6), sidecar(4), spec("a", 1)], Amount(0, 8), id="between"
        ),
    ],
)
def test_the_effective_request(containers: list[ContainerSpec], amount: Amount) -> None:
    """Contracts 5: max(containers + sidecars, init with the sidecars before it)."""
    assert peak_amount(containers) == amount


def test_together_containers_are_one_claim() -> None:
    """What an init container held, later ones may have again."""
    built = build_claims(
        [init(4), sidecar(1), spec("idle"), spec("b", 3, 5)], apart=False
    )
    (only_claim,) = built
    assert (only_claim.amount, only_claim.passing) == (Amount(5, 4), {"init"})
    assert [(amounts.name, amounts.amount) for amounts in only_claim.containers] == [
        *(("init", Amount(0, 4)), ("side", Amount(0, 1)), ("b", Amount(5, 3)))
    ]


def test_apart_each_container_that_asks_is_a_claim() -> None:
    built = build_claims([init(0), sidecar(2), spec("a", 3), spec("idle")], apart=True)
    assert built == (claim(2, container="side"), claim(3, container="a"))


def test_apart_with_an_init_container_that_asks_is_refused() -> None:
    """kubelet would hand its ids on to containers of other cards."""
    built = build_claims([init(1), spec("a", 3)], apart=True)
    assert built == Refusal(
        Reason.INVALID, "containers cannot be apart when an init container asks"
    )


def test_only_so_many_containers_may_be_apart() -> None:
    """Room for all is looked for on every node; who asks nothing does not count."""
    many = [spec(f"c{n}", 1) for n in range(MOST_APART)]
    built = build_claims([*many, spec("idle")], apart=True)
    assert len(built) == MOST_APART
    built = build_claims([*many, spec("more", 1)], apart=True)
    assert built.detail.startswith("17 containers ask and are to be apart; at most 16")
    assert not isinstance(build_claims([*many, spec("more", 1)], apart=False), Refusal)


@pytest.mark.parametrize(
    ("cores", "remedy"),
    [(101, "ask 100 or 200"), (150, "ask 100 or 200"), (299, "ask 200 or 300")],
)
@pytest.mark.parametrize("apart", [True, False], ids=["apart", "together"])
def test_cores_in_between_are_refused_with_the_remedy(
    cores: int, remedy: str, apart: bool
) -> None:
    """One and a half cards cannot be had; the refusal says what can."""
    built = build_claims([spec("a", 1, cores)], apart=apart)
    assert built.reason is Reason.INVALID
    assert f"{cores} cores" in built.detail
    assert remedy in built.detail


def test_cores_count_over_the_whole_pod() -> None:
    """Two containers of 60 cores ask 120 together, and 60 each when apart."""
    two = [spec("a", 1, 60), spec("b", 1, 60)]
    assert isinstance(build_claims(two, apart=False), Refusal)
    assert not isinstance(build_claims(two, apart=True), Refusal)
    for cores in (0, 1, 99, 100, 200, 1600):
        assert build_claims([spec("a", 1, cores)], apart=False) == (
            claim(1, cores, container="a"),
        )
