"""Whether the ledger can be trusted, and in words why not."""

from dataclasses import dataclass

from gpushare.kube.reflector import Reflector


@dataclass(frozen=True, slots=True)
class Readiness:
    """Ready when every reflector has synced and been heard from lately."""

    reflectors: tuple[tuple[str, Reflector], ...]
    stale_after_s: float

    def why_not(self) -> list[str]:
        """Give a sentence for each reason not to answer; none when ready."""
        reasons = []
        for name, reflector in self.reflectors:
            age_s = reflector.age_s()
            if not reflector.synced.is_set():
                reasons.append(f"{name} have not been listed yet")
            elif age_s is None or age_s > self.stale_after_s:
                reasons.append(
                    f"nothing heard of {name} for {age_s or 0:.0f} s; "
                    "is the API server reachable?"
                )
        return reasons

    def ages_s(self) -> dict[str, float]:
        """Give the seconds since each reflector last heard something."""
        ages = {name: reflector.age_s() for name, reflector in self.reflectors}
        return {name: age_s for name, age_s in ages.items() if age_s is not None}
