"""The names of topics, short and complete."""

import re
from dataclasses import dataclass

from .exceptions import InvalidTopicName

__all__ = ["TopicName"]

_DOMAINS = ("persistent", "non-persistent")
_ENTITY = re.compile(r"[-=:.\w]+", re.ASCII)  # what brokers take as a tenant, cluster or namespace
_PARTITION = re.compile(r"-partition-(0|[1-9][0-9]{0,8})\Z")


@dataclass(frozen=True)
class TopicName:
    """A complete topic name, as it goes over the wire: never escaped, whatever it holds."""

    full: str
    """`persistent://tenant/namespace/topic` (or the older form with a cluster in the middle)."""
    persistent: bool
    partition: int
    """Which partition of a partitioned topic this is, -1 if none."""

    @classmethod
    def parse(cls, topic: str) -> "TopicName":
        """Parse `topic`, `tenant/namespace/topic` or `persistent://...`, `non-persistent://...`.

        Raises InvalidTopicName (a ValueError), or TypeError if `topic` is not a `str`.
        """
        if not isinstance(topic, str):
            raise TypeError(f"topic must be a str, not {type(topic).__name__}")
        try:
            domain, path = _split(topic)
        except ValueError as error:
            raise InvalidTopicName(f"topic {topic!r} cannot be used: {error}") from None
        partition = _PARTITION.search(path)
        return cls(f"{domain}://{path}", domain == "persistent", int(partition[1]) if partition else -1)

    def partition_name(self, index: int) -> str:
        """The complete name of one partition of this topic."""
        return f"{self.full}-partition-{index}"


def _split(topic: str) -> tuple[str, str]:
    """The domain and the rest of the complete name; ValueError if there is none."""
    domain, separator, path = topic.partition("://")
    if not separator:
        domain, path = "persistent", topic if "/" in topic else f"public/default/{topic}"
        if path.count("/") != 2:
            raise ValueError("it must be t, tenant/namespace/t or persistent://tenant/namespace/t")
    elif domain not in _DOMAINS:
        raise ValueError(f"the domain {domain!r} is neither persistent nor non-persistent")
    *entities, name = path.split("/", 3)  # the oldest form has a cluster, and slashes in the name
    if len(entities) < 2:
        raise ValueError("it must have a tenant, a namespace and a name")
    for entity in entities:
        if not _ENTITY.fullmatch(entity):
            raise ValueError(f"{entity!r} is no tenant or namespace: these hold letters, digits, -=:._")
    if not name.strip():
        raise ValueError("the name of the topic is empty")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError("it holds a surrogate, which UTF-8 cannot carry") from None
    return domain, path
