"""`spmd-launch` with a provider that says it costs money: a cloud of which nothing exists but its answers.

python -m tests.launcher.paid_cloud up FILE ...; `type: fake-cloud` in the file. Asked to create, it says so and fails.
It lists all machines of a cluster, or none where FAKE_CLOUD_IS_EMPTY is set.
"""

import dataclasses
import os
from collections.abc import Callable
from typing import Any, ClassVar, cast

import launcher.bringup
import launcher.dry_run
from cluster.errors import ClusterError
from cluster.place_code import Code
from cluster.plan import Action, host_actions
from cluster.prices import Rental
from cluster.provider import Provider, Say
from cluster.record import Cluster
from cluster.spec import PROVIDERS, ClusterSpec
from launcher.cli import main


@dataclasses.dataclass(frozen=True, kw_only=True)
class FakePaidSpec:
    """Machines of a cloud that does not exist."""

    type: ClassVar[str] = "fake-cloud"
    accelerators: ClassVar[tuple[str, ...]] = ("cpu",)
    owns_ray: ClassVar[bool] = True
    shares_disk: ClassVar[bool] = False
    is_paid: ClassVar[bool] = True
    region: str

    def rentals(self, spec: ClusterSpec) -> list[Rental]:
        return [Rental(product="fake/machine", region=self.region, count=spec.num_hosts)]


class FakePaidProvider:
    """See `cluster.provider.Provider`."""

    resumes = False

    def __init__(self, spec: ClusterSpec):
        self.names = [f"{spec.name}-{index}" for index in range(spec.num_hosts)]

    def find(self) -> Cluster | None:
        return None

    def plan_up(self) -> list[Action]:
        machines = [Action(verb="create", kind="fake machine", name=name, detail="m1") for name in self.names]
        return [*machines, *host_actions("start", self.names)]

    def plan_down(self) -> list[Action]:
        if os.environ.get("FAKE_CLOUD_IS_EMPTY"):
            return []
        return [Action(verb="delete", kind="fake machine", name=name) for name in self.names]

    def create(self, code: Code, say: Say, head_has_code: Callable[[], None]) -> Cluster:
        raise ClusterError("the fake cloud was asked to create machines")

    def delete(self, code: Code, *, purge: bool = False) -> list[str]:
        return []

    def after_down(self) -> str:
        return "the fake cloud lists none"

    def close(self) -> None:
        pass


def provider_for(spec: ClusterSpec) -> Provider:
    return cast(Provider, FakePaidProvider(spec))


if __name__ == "__main__":
    cast(dict[str, Any], PROVIDERS)[FakePaidSpec.type] = FakePaidSpec
    launcher.bringup.provider_for = launcher.dry_run.provider_for = provider_for
    main()
