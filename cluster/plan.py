"""What `up` and `down` would do, as a list that a person reads before any of it is done."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

Verb = Literal["create", "delete", "start", "end", "keep"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Action:
    """One step of `up` or `down`.

    Attributes:
        verb: `create` and `delete` are of what the provider makes and unmakes, and may cost money; `start` and `end`
            are of what runs on a host that is there; `keep` is of what stays as it is.
        kind: of thing, as its users call it: `queued resource`, `TPU VM`, `EC2 instance`, `host`.
        name: its own, under which it is found again.
        detail: a few words more; '' for none. Never a token or a key.
    """

    verb: Verb
    kind: str
    name: str
    detail: str = ""


def host_actions(verb: Verb, names: Sequence[str], detail: str = "") -> list[Action]:
    """The same step for each host, the head first.

    Args:
        verb: what is done.
        names: of the hosts, the first is the head.
        detail: of each of them.
    """
    return [
        Action(verb=verb, kind="host", name=name, detail=", ".join(filter(None, [detail, "" if index else "the head"])))
        for index, name in enumerate(names)
    ]
