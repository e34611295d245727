"""What a cluster file says of a Ray cluster that runs already and is not ours."""

import dataclasses
import re
from typing import ClassVar

from cluster.durations import NEVER
from cluster.errors import ClusterConfigError

EVERY_NODE = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class RayProviderSpec:
    """Nodes of a Ray cluster that somebody else has started, KubeRay for one, and that goes on without us.

    Attributes:
        address: host:port of its control service (GCS), 6379 unless it was started with another port.
    """

    type: ClassVar[str] = "ray"
    accelerators: ClassVar[tuple[str, ...]] = ("cpu",)
    owns_ray: ClassVar[bool] = False
    shares_disk: ClassVar[bool] = False
    over_ssh: ClassVar[bool] = False
    is_paid: ClassVar[bool] = False
    idle_by_default: ClassVar[str] = NEVER
    address: str

    def __post_init__(self) -> None:
        match = re.fullmatch(r"([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})", _text(self.address))
        if match is not None and 0 < int(match[2]) < 2**16:
            return
        hint = "; ray:// is for Ray's own client" if _text(self.address).startswith("ray://") else ""
        raise ClusterConfigError(
            "provider.address", f"must be HOST:PORT of Ray's control service (GCS), not {self.address!r}{hint}"
        )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
