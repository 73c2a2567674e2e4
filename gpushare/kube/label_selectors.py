"""Which labels a selector chooses, as Kubernetes judges its requirements. Pure.

The sources: ``LabelSelectorAsSelector`` of ``apimachinery/pkg/apis/meta/v1`` and, for
nodes, ``component-helpers/scheduling/corev1/nodeaffinity``.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gpushare.domain.quantity import is_plain_number
from gpushare.kube.json_reader import Malformed, Reader


class LabelRequirement(NamedTuple):
    """One requirement; only selectors of nodes have ``Gt`` and ``Lt``."""

    key: str
    operator: str
    """``In``, ``NotIn``, ``Exists``, ``DoesNotExist``, ``Gt`` or ``Lt``."""
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels, or fields, meet it; an unknown operator is not met."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
        if value is None or not self.values:
            return False
        return compare_numbers(self.operator, value, self.values[0])


def read_selector(selector: Reader) -> tuple[LabelRequirement, ...]:
    """Read a selector of labels; labels must meet all of the requirements."""
    labels = selector.optional_object("matchLabels").texts("")
    return (
        *(LabelRequirement(key, "In", (value,)) for key, value in labels.items()),
        *read_requirements(selector, "matchExpressions"),
    )


def read_requirements(holder: Reader, key: str) -> Iterator[LabelRequirement]:
    """Read the requirements of one list; ``Malformed`` names a wrong field."""
    for rule in holder.optional_objects(key):
        values = rule.raw.get("values") or []
        if not isinstance(values, list):
            raise Malformed(rule.path("values"), "must be a list")
        texts = tuple(map(str, values))
        yield LabelRequirement(rule.text("key"), rule.text("operator"), texts)


def compare_numbers(operator: str, value: str, limit: str) -> bool:
    """Return whether ``Gt`` or ``Lt`` holds; never for what is no whole number."""
    if not (is_number(value) and is_number(limit)):
        return False
    if operator == "Gt":
        return int(value) > int(limit)
    return operator == "Lt" and int(value) < int(limit)


def is_number(text: str) -> bool:
    """Return whether the value of a label or a selector is a whole number.

    >>> is_number("-3"), is_number("9" * 5000), is_number("x")
    (True, False, False)
    """
    return is_plain_number(text.removeprefix("-"))
