"""What marks resources of a cloud as ours, in every cloud alike: `list --all` finds by it what others have made."""

import getpass

CLUSTER, ID, USER, HOST = "spmd-launch-cluster", "spmd-launch-id", "spmd-launch-user", "spmd-launch-host"


def own_user() -> str:
    """This user, as the value of a label."""
    return label_value(getpass.getuser())


def label_value(text: str) -> str:
    """A text as all clouds take it: lower-case letters, digits, dashes and underscores, at most 63."""
    return "".join(char if char.isascii() and (char.isalnum() or char in "_-") else "-" for char in text.lower())[:63]
