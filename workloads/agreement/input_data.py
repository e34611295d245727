"""Have all ranks read the same input? Each reads its own copy of a file, and one host may have an old one."""

from workloads.agreement.environment import EnvironmentDifference
from workloads.errors import InputMismatchError
from workloads.exchange import Exchange


def check_same_input(what: str, digest: str, *, exchange: Exchange, host: str) -> None:
    """Refuses to go on where ranks have read different data; every rank must call it.

    Args:
        what: the digest is of, as `sha256 of the text`.
        digest: of what this rank has read.
        exchange: messages between all ranks.
        host: this host's name.

    Raises:
        InputMismatchError: on every rank, naming the odd ranks and hosts by majority.
        TimeoutError: naming the ranks that did not come.
    """
    posts = dict(zip(exchange.ranks, exchange.all_gather("input", [digest, host]), strict=True))
    difference = EnvironmentDifference(key=what, values={rank: found for rank, (found, _) in posts.items()})
    if len(set(difference.values.values())) > 1:
        sentence = difference.sentence({rank: name for rank, (_, name) in posts.items()})
        raise InputMismatchError(
            f"the hosts have read different data; nothing has run: {sentence}. Give every host the same file."
        )
