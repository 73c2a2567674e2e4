"""Each alert fires when it should, on promtool's own clock, and not otherwise."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.cards.xids import CARD_XIDS, PROGRAM_XIDS
from monitoring.alerts import GROUPS, Alert
from tests.monitoring import alertcases_cards, alertcases_pods, alertcases_processes
from tests.monitoring.alertcases import Case
from tests.testbed.manifests import FOLDER
from tests.testbed.prometheus import Promtool

RULES = FOLDER / "monitoring" / "alerts.yaml"
CASES = (*alertcases_cards.CASES, *alertcases_pods.CASES, *alertcases_processes.CASES)
ALERTS = tuple(alert for group in GROUPS for alert in group.alerts)
MINUTES = re.compile(r"\[(\d+)m\]")
LABEL = re.compile(r"(?<!\bor )(?<!\bwith )\$labels\.(\w+)")
"""A label of a text; not those that only MIG instances have."""


def without_cures(folder: Path, name: str, *, left_open: bool) -> Path:
    """An alert's rules without the long texts, which promtool would compare.

    Other rules would only be evaluated in vain: none reads what another one writes.
    ``left_open``: with ranges a moment shorter, so that a sample on the left end does
    not count, as Prometheus 3 has it and Prometheus 2 does not.
    """
    rules = yaml.safe_load(RULES.read_text())
    for group in rules["groups"]:
        group["rules"] = [rule for rule in group["rules"] if rule["alert"] == name]
        for rule in group["rules"]:
            del rule["annotations"]["description"]
            if left_open:
                rule["expr"] = MINUTES.sub(_a_moment_less, rule["expr"])
    path = folder / "rules.yaml"
    path.write_text(yaml.safe_dump(rules))
    return path


def _a_moment_less(minutes: re.Match[str]) -> str:
    return f"[{int(minutes[1]) * 60_000 - 1}ms]"


def examined(*cases: Case, rules: Path) -> dict[str, Any]:
    """Cases as promtool has them; at that minute nothing else fires by that name."""
    tests = []
    for case in cases:
        texts = {"summary": case.says}
        firing = {"exp_labels": dict(case.labels), "exp_annotations": texts}
        look = {
            "eval_time": f"{case.at}m",
            "alertname": case.alert,
            "exp_alerts": [firing] if case.says else [],
        }
        series = [{"series": name, "values": v} for name, v in case.series.items()]
        test = {"interval": "1m", "input_series": series, "alert_rule_test": [look]}
        tests.append(test)
    return {"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests}


def firing_of(alert: Alert) -> list[Case]:
    """The cases in which this very rule fires."""
    own = {"severity": alert.severity, **alert.labels}
    return [
        case
        for case in CASES
        if case.says
        and case.alert == alert.name
        and {key: case.labels.get(key, "") for key in (*own, "page")}
        == {"page": "", **own}
    ]


@pytest.mark.parametrize("left_open", [False, True], ids=["closed", "left-open"])
@pytest.mark.parametrize("name", sorted({case.alert for case in CASES}))
def test_it_fires_or_it_does_not(
    name: str, promtool: Promtool, tmp_path: Path, left_open: bool
) -> None:
    """With these labels and these words, or in silence, case by case.

    The same whether ranges are closed, as in Prometheus 2, or open to the left.
    """
    rules = without_cures(tmp_path, name, left_open=left_open)
    path = tmp_path / "test.yaml"

    def failure(*cases: Case) -> str:
        path.write_text(yaml.safe_dump(examined(*cases, rules=rules)))
        done = promtool.run("test", "rules", path)
        return done.stdout + done.stderr if done.returncode else ""

    cases = [case for case in CASES if case.alert == name]
    # All at once, for they are many; one by one only to say which of them fails.
    if failure(*cases):
        wrong = {case.rule: failure(case) for case in cases}
        pytest.fail(
            "\n".join(f"{rule}: {output}" for rule, output in wrong.items() if output)
        )


@pytest.mark.parametrize(
    "alert", ALERTS, ids=lambda alert: f"{alert.name}-{alert.labels}"
)
def test_every_rule_has_cases_of_both_kinds(alert: Alert) -> None:
    """One in which it fires and one in which it stays silent.

    A label that the alert does not have would be an empty place in a sentence.
    """
    firing = firing_of(alert)
    assert firing
    assert [case for case in CASES if case.alert == alert.name and not case.says]
    wanted = set(LABEL.findall(alert.summary + alert.cure))
    assert all(wanted <= set(case.labels) for case in firing)


def test_no_alert_has_a_card_reset_under_its_pods() -> None:
    """A reset ends all that runs there: the text says to move its pods, or warns."""
    resets = [alert for alert in ALERTS if re.search(r"\breset\b", alert.cure)]
    assert len(resets) == 4
    for alert in resets:
        assert re.search("move its pods|ends all pods", alert.cure), alert.name


@pytest.mark.parametrize(
    ("name", "rule", "words"),
    [
        # Whoever reads it must not have to ask Prometheus for the pods.
        ("VcudaDrift", "", "differ: a/bert-0 . With `actual`"),
        ("VcudaGpuLost", "the exporter alone says so", "cordon-card n 0`"),
        # Its own UUID, because ``gpu`` is the number of the card.
        ("VcudaGpuLost", "one of two MIG instances", "cordon-card n MIG-1`"),
    ],
)
def test_a_text_names_what_it_is_about(
    name: str, rule: str, words: str, promtool: Promtool, tmp_path: Path
) -> None:
    """As Prometheus fills in the labels."""
    (case,) = [
        each
        for each in CASES
        if each.alert == name and each.says and rule in ("", each.rule)
    ]
    test = examined(case, rules=RULES)
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump(test))
    done = promtool.run("test", "rules", path)
    # It prints the description that the test does not expect.
    assert done.returncode == 1
    assert words in done.stdout + done.stderr


def test_promtool_likes_the_rules(promtool: Promtool) -> None:
    """No lint, no doubled rule; it counts as many as we have."""
    output = promtool.must("check", "rules", "--lint=all", "--lint-fatal", RULES)
    assert f"{len(ALERTS)} rules found" in output


def test_an_xid_is_either_the_cards_fault_or_the_programs() -> None:
    """Never both.

    DCGM_FI_DEV_XID_ERRORS keeps the last fault for ever, so no alert asks it.
    """
    assert not set(PROGRAM_XIDS) & set(CARD_XIDS)
    assert not [alert for alert in ALERTS if "DCGM_FI_DEV_XID_ERRORS" in alert.expr]
