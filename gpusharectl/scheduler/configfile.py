"""Our KubeSchedulerConfiguration on one host: what it is to say, and what stays of it.

It is made of the configuration that kube-scheduler had before us, which stays where it
is. Where somebody has written into ours since, it is made of that.
"""

from dataclasses import dataclass, replace

import yaml

from gpushare.kube.cluster import Json
from gpusharectl.scheduler import nodescores, schedulerconfig
from gpusharectl.scheduler.hostfiles import HostFiles
from gpusharectl.scheduler.hostrecord import Record
from gpusharectl.scheduler.nodescores import Percentages
from gpusharectl.scheduler.obstacle import Obstacle
from gpusharectl.scheduler.schedulerconfig import TlsFiles, Wanted
from gpusharectl.scheduler.starter import Found, Starter


@dataclass(frozen=True, slots=True)
class Seen:
    """What lies on the host."""

    main: str | None
    """The starter's file."""
    bare: str | None
    """The starter's file as it would be without us."""
    config: bytes | None
    """Our configuration."""
    record: Record | None

    @property
    def text(self) -> str:
        """Our configuration as text."""
        return (self.config or b"").decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Made:
    """Our configuration as it is to be, and what the record has to tell of it."""

    text: str
    edited: bool
    """Whether it is made of what somebody has written into ours."""
    scored: Percentages
    """What ``all_nodes`` has overwritten."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """One host's; nothing is written here."""

    files: HostFiles
    starter: Starter
    path: str
    kubernetes: str
    """Its version, such as ``v1.36.3``."""
    extender: Json
    """Our stanza as it is shipped."""
    tls: TlsFiles | None
    all_nodes: bool

    def made(self, seen: Seen) -> Made | Obstacle:
        """Give it with our stanza, and all else as it was."""
        api = schedulerconfig.api_for(self.kubernetes)
        if isinstance(api, Obstacle):
            return api
        found = self._found(seen)
        if isinstance(found, Obstacle):
            return found
        edited = self.is_edited(seen)
        source = self.path if edited else found.config
        old = self.files.read(source) if source else b""
        if old is None:
            return Obstacle(f"{self.starter.path} names {source}, which is not there")
        known = self._known(seen, found) if edited else {}
        wanted = Wanted(
            self.extender,
            api,
            found.flags,
            self.starter.kubeconfig(seen.bare),
            self.tls,
            all_nodes=self.all_nodes,
            scored=known,
        )
        before = old.decode(errors="replace") if source else None
        text = schedulerconfig.with_stanza(before, wanted)
        if isinstance(text, Obstacle):
            return Obstacle(f"{source or self.starter.path}: {text}")
        # Off, it may have to be set back once more: a kill may come before the file.
        scored = _recorded(seen) if edited else {}
        if self.all_nodes:
            scored = nodescores.before(_read(before), known)
        origin = f" from {found.config}" if found.config else ""
        head = f"# Made{origin} by gpusharectl install, which may be run again.\n"
        return Made(head + text, edited, scored)

    def kept(self, seen: Seen) -> str | Obstacle | None:
        """Give it without our stanza, if somebody has written into it; else None."""
        if not self.is_edited(seen):
            return None
        found = self._found(seen)
        known = {} if isinstance(found, Obstacle) else self._known(seen, found)
        return schedulerconfig.without_stanza(seen.text, known)

    def is_edited(self, seen: Seen) -> bool:
        """Tell whether it says more than our stanza and what was there before us.

        Where the record does not tell, the two are compared.
        """
        if seen.config is None or self._as_left(seen, seen.config):
            return False
        plain = replace(self, tls=None, all_nodes=False)
        made = plain.made(Seen(seen.main, seen.bare, None, None))
        found = self._found(seen)
        if isinstance(made, Obstacle) or isinstance(found, Obstacle):
            return True
        bare = schedulerconfig.without_stanza(made.text, {})
        left = schedulerconfig.without_stanza(seen.text, self._known(seen, found))
        if isinstance(bare, Obstacle) or isinstance(left, Obstacle):
            return True
        return bool(yaml.safe_load(bare) != yaml.safe_load(left))

    def _as_left(self, seen: Seen, config: bytes) -> bool:
        """Tell whether the record knows it, and as ours alone."""
        if seen.record is None or seen.record.edited:
            return False
        sums = seen.record.files.get(self.path)
        return sums is not None and sums.made_by_us(config)

    def _found(self, seen: Seen) -> Found | Obstacle:
        found = self.starter.found(seen.bare)
        if isinstance(found, Obstacle):
            return Obstacle(f"{self.starter.path} {found}")
        return found

    def _known(self, seen: Seen, found: Found) -> Percentages:
        """Tell what was said of nodes to score, where ours says something of its own.

        By the record, and where that is lost by the configuration from before us.
        """
        if not schedulerconfig.is_weighted(seen.text, self.extender):
            return {}
        old = self.files.read(found.config) if found.config else None
        text = None if old is None else old.decode(errors="replace")
        return {**nodescores.said(_read(text)), **_recorded(seen)}


def _recorded(seen: Seen) -> Percentages:
    return seen.record.scored if seen.record else {}


def _read(text: str | None) -> Json:
    config = {} if text is None else schedulerconfig.read(text)
    return {} if isinstance(config, Obstacle) else config
