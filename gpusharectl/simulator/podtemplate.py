"""What of a manifest can be played, and what is wrong with the rest. Pure."""

from gpushare.domain.quantity import NotAQuantity, mebibytes
from gpushare.domain.summary import users_words
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.fields import Malformed, Reader

OURS = (names.PLACEMENT, names.ACTUAL)
"""Annotations that the extender and the device plugin write."""
_OTHERS_SPEC = ("nodeName", "schedulingGates")
_MOST_MIB = 2**63 >> 20
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_TOLERATES = ("", "Equal", "Exists")
_MOST_DIGITS = 18
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def playable(pod: Json) -> Json:
    """Give a pod, or a controller's template of one, as ``before_it_ran``.

    ``Malformed`` for what no API server would let through, so far as it is read here.
    """
    _check(Reader(pod))
    return before_it_ran(pod)


def before_it_ran(pod: Json) -> Json:
    """Give a pod without its node, status, gates and placement.

    Those a pod has that was pasted from ``kubectl get -o yaml``.
    """
    metadata = dict(pod.get("metadata") or {})
    annotations = metadata.get("annotations") or {}
    metadata["annotations"] = {k: v for k, v in annotations.items() if k not in OURS}
    spec = {k: v for k, v in pod["spec"].items() if k not in _OTHERS_SPEC}
    rest = {key: value for key, value in pod.items() if key != "status"}
    return {**rest, "metadata": metadata, "spec": spec}


def check_amount(value: object) -> None:
    """Insist on a quantity that Kubernetes takes; ``NotAQuantity`` says what is wrong.

    >>> check_amount("1e999")
    Traceback (most recent call last):
    gpushare.domain.quantity.NotAQuantity: it is more than 2^63-1, which is the most
    """
    if mebibytes(value) > _MOST_MIB:
        raise NotAQuantity("it is more than 2^63-1, which is the most")


def _check(pod: Reader) -> None:
    metadata = pod.optional_object("metadata")
    metadata.optional_text("namespace")
    for key in ("labels", "annotations"):
        metadata.optional_object(key).texts("")
    spec = pod.object("spec")
    if not spec.objects("containers"):
        raise Malformed(spec.path("containers"), "must name at least one")
    for key in ("initContainers", "containers"):
        for container in spec.optional_objects(key):
            _check_resources(container.optional_object("resources"))
    _check_resources(spec.optional_object("resources"))
    _check_amounts(spec.optional_object("overhead"))
    spec.optional_object("nodeSelector").texts("")
    for toleration in spec.optional_objects("tolerations"):
        for key in ("key", "value", "effect"):
            toleration.optional_text(key)
        _one_of(toleration, "operator", _TOLERATES)
    affinity = spec.optional_object("affinity").optional_object("nodeAffinity")
    for term in affinity.optional_object(_REQUIRED).optional_objects(
        "nodeSelectorTerms"
    ):
        for key in ("matchExpressions", "matchFields"):
            for expression in term.optional_objects(key):
                _check_expression(expression)


def _check_resources(resources: Reader) -> None:
    for part in ("requests", "limits"):
        _check_amounts(resources.optional_object(part))


def _check_amounts(amounts: Reader) -> None:
    for name, value in amounts.raw.items():
        if name in (names.MEMORY, names.CORE):
            # The extender's own reading has better words for these.
            continue
        try:
            check_amount(value)
        except NotAQuantity as error:
            raise Malformed(
                amounts.path(name),
                f'is "{users_words(str(value))}", but {error}; give one such as 4, '
                "500m or 16Gi",
            ) from error


def _check_expression(expression: Reader) -> None:
    expression.text("key")
    operator = _one_of(expression, "operator", _OPERATORS)
    values = expression.raw.get("values") or []
    if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
        raise Malformed(expression.path("values"), "must be a list of strings")
    if operator in ("Gt", "Lt") and (len(values) != 1 or not is_number(values[0])):
        raise Malformed(
            expression.path("values"),
            f"is {users_words(str(values))}; {operator} takes one whole number",
        )


def is_number(text: str) -> bool:
    """Tell whether a label or a selector's value is a whole number.

    >>> is_number("-3"), is_number("9" * 5000), is_number("x")
    (True, False, False)
    """
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and len(digits) <= _MOST_DIGITS


def _one_of(reader: Reader, key: str, allowed: tuple[str, ...]) -> str:
    found = reader.optional_text(key)
    if found not in allowed:
        known = ", ".join(filter(None, allowed))
        problem = f'is "{users_words(found)}"; known are {known}'
        raise Malformed(reader.path(key), problem)
    return found
