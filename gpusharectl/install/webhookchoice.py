"""What an operator says of the webhook, and what that makes of what is there. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from gpushare.settings import PREFIX

ON = "on"
UI = f"{PREFIX}UI"
"""The extender's own, for its page."""
POLICY = f"{PREFIX}POLICY"
"""The extender's own: which card it chooses."""
CARD_CLASSES = f"{PREFIX}CARD_CLASSES"
"""The webhook's, of the cluster's RuntimeClasses: no option says it.

Its name is like no other's: an older image would take it for that one misspelt.
"""
_FLAG = {"wanted": ("--with-webhook", "--no-webhook")}
"""All other options are called as their fields."""


@dataclass(frozen=True, slots=True)
class WebhookChoice:
    """The webhook's options; None where nothing is said, so that it stays as it is.

    A text that is empty takes its setting away. Every field but ``wanted`` is also a
    setting of the webhook's, in capitals.
    """

    wanted: bool | None = None
    void: bool | None = None
    set_scheduler: str | None = None
    set_runtime_class: str | None = None
    env_from: str | None = None
    quotas: bool | None = None
    bitfusion_card_mib: str | None = None
    bitfusion_shell: str | None = None
    bitfusion_strict: bool | None = None
    bitfusion_quota: bool | None = None

    def keeping(self, there: Mapping[str, str]) -> "WebhookChoice":
        """Settle what was left open by the variables of a webhook that is there."""
        found = {
            option: _read(option, there.get(name, ""))
            for option, name in _SETTING_OF.items()
            if getattr(self, option) is None
        }
        return replace(self, wanted=self.wanted is not False, **found)

    def settings(self) -> Mapping[str, str]:
        """Give the variables that it shall have; none for what is off."""
        said = {name: getattr(self, option) for option, name in _SETTING_OF.items()}
        return {
            name: ON if text is True else text for name, text in said.items() if text
        }

    def words(self) -> list[str]:
        """Give the options as they are typed."""
        found: list[str] = []
        for option in _OPTIONS:
            said = getattr(self, option)
            if isinstance(said, str):
                found += [_flags(option)[0], said]
            elif said is not None:
                found.append(_flags(option)[0 if said else 1])
        return found

    @property
    def settling(self) -> tuple[str, ...]:
        """The options given that are of use only where there is a webhook."""
        return tuple(
            _flags(option)[0]
            for option in _SETTING_OF
            if getattr(self, option) not in (None, False, "")
        )


def _read(option: str, text: str) -> Any:  # noqa: ANN401
    """Read a variable; what is off may as well not be there."""
    if option in _SWITCHES:
        return True if text == ON else None
    return text or None


def _flags(option: str) -> tuple[str, str]:
    word = option.replace("_", "-")
    return _FLAG.get(option, (f"--{word}", f"--no-{word}"))


_OPTIONS = tuple(one.name for one in fields(WebhookChoice))
_SWITCHES = ("void", "quotas", "bitfusion_strict", "bitfusion_quota")
_SETTING_OF = {
    option: PREFIX + option.upper() for option in _OPTIONS if option != "wanted"
}
QUOTA = _SETTING_OF["bitfusion_quota"]
"""The device plugin's too: both keep ``bitfusion.io/gpu``, or neither."""
