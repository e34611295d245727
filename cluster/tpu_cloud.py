"""The Cloud TPU API, as far as we need it: what is there, ask for a slice, delete it. Google's client does the rest."""

import dataclasses
import functools
import math
import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from google.api_core import exceptions
from google.api_core.client_options import ClientOptions
from google.api_core.operation import Operation
from google.api_core.retry import Retry
from google.auth.exceptions import GoogleAuthError
from google.cloud import tpu_v2

from cluster.accelerators import Accelerator
from cluster.errors import NotGivenError
from cluster.gcp_spec import GcpTpuProviderSpec, runtime_version
from cluster.spec import ClusterSpec
from cluster.tpu_errors import explain, is_of_zone, may_pass, of_status
from cluster.tpu_slice import SUSPENDED_REQUESTS, Slice
from cluster.tpu_zones import ask_zones, in_words

T = TypeVar("T")

CALL_TIMEOUT_S = 30.0
FIRST_RETRY_S = 0.5
RETRY_FOR_S = 90.0
SCOPE = "https://www.googleapis.com/auth/cloud-platform"


class CloudError(NotGivenError):
    """The cloud has refused, or does not answer."""


class TpuCloud:
    """One zone of one project.

    Args:
        provider: what the cluster file says of them.
        accelerator: the type of slice, for messages.
        patience_s: how long a call may take, with all tries, where that is less than usual.
    """

    def __init__(self, provider: GcpTpuProviderSpec, accelerator: str = "", patience_s: float = math.inf):
        self.provider, self.accelerator = provider, accelerator
        self._patience_s = patience_s

    @functools.cached_property
    def _client(self) -> tpu_v2.TpuClient:
        """Google's; made when it is first used, which needs credentials."""
        endpoint = self.provider.endpoint
        options = ClientOptions(api_endpoint=endpoint) if endpoint else ClientOptions()
        return self._explained(lambda: tpu_v2.TpuClient(client_options=options))

    def slices(self) -> list[Slice]:
        """All that is there, whoever made it.

        Raises:
            CloudError: it cannot be told, in words; also where the zone, or one of all zones, does not answer.
        """
        parent = self.provider.parent
        found: dict[tuple[str, str], Slice] = {}
        requests = tpu_v2.ListQueuedResourcesRequest(parent=parent)
        for request in self._list(self._client.list_queued_resources, requests, "queued_resources"):
            for spec in request.tpu.node_spec:
                slice_ = self._of_request(request, spec)
                found[slice_.zone, slice_.name] = slice_
        for node in self._list(self._client.list_nodes, tpu_v2.ListNodesRequest(parent=parent), "nodes"):
            slice_ = _of_node(node)
            asked = found.get((slice_.zone, slice_.name))
            found[slice_.zone, slice_.name] = slice_ if asked is None else dataclasses.replace(
                slice_, request=asked.request, problem=asked.problem, ended_by_user=asked.ended_by_user,
                is_short=asked.is_short, spot=asked.spot, created=asked.created,
                labels={**asked.labels, **slice_.labels},
            )  # fmt: skip
        return list(found.values())

    def request(
        self, name: str, spec: ClusterSpec, labels: Mapping[str, str], metadata: Mapping[str, str]
    ) -> Operation:
        """Asks for a slice; returns the API's operation, which may yet fail.

        Args:
            name: of the slice.
            spec: of its cluster.
            labels: that mark it as ours.
            metadata: of its machines.
        """
        provider = self.provider
        node = tpu_v2.Node(
            accelerator_type=spec.hardware.tpu_type,
            runtime_version=runtime_version(spec),
            labels=dict(labels),
            metadata=dict(metadata),
            network_config=tpu_v2.NetworkConfig(
                network=provider.network or "",
                subnetwork=provider.subnetwork or "",
                enable_external_ips=not provider.use_internal_ips,
            ),
        )
        if provider.service_account is not None:
            node.service_account = tpu_v2.ServiceAccount(email=provider.service_account, scope=[SCOPE])
        node_spec = tpu_v2.QueuedResource.Tpu.NodeSpec(parent=provider.parent, node_id=name, node=node)
        asked = tpu_v2.QueuedResource(tpu=tpu_v2.QueuedResource.Tpu(node_spec=[node_spec]))
        if provider.spot:
            asked.spot = tpu_v2.QueuedResource.Spot()
        if provider.reservation is not None:
            asked.guaranteed = tpu_v2.QueuedResource.Guaranteed(reserved=True)
            asked.reservation_name = self._reservation(provider.reservation)
        request = tpu_v2.CreateQueuedResourceRequest(
            parent=provider.parent,
            queued_resource_id=name,
            queued_resource=asked,
            request_id=str(uuid.uuid4()),  # of this call and its retries: the API takes it once
        )
        return self._call(self._client.create_queued_resource, request)

    def _reservation(self, name: str) -> str:
        return name if "/" in name else f"{self.provider.parent}/reservations/{name}"

    def delete(self, slice_: Slice) -> None:
        """Begins to delete a slice: its request with its TPU VM, or a TPU VM whose request is gone."""
        parent = f"projects/{self.provider.project}/locations/{slice_.zone}"
        try:
            if slice_.request:
                name = f"{parent}/queuedResources/{slice_.name}"
                order = tpu_v2.DeleteQueuedResourceRequest(name=name, force=True)
                self._call(self._client.delete_queued_resource, order)
            else:
                order = tpu_v2.DeleteNodeRequest(name=f"{parent}/nodes/{slice_.name}")
                self._call(self._client.delete_node, order)
        except NotThereError:
            return

    def failure(self, operation: Operation) -> str:
        """Why what was asked for will not be; '' as long as it may."""
        done = self._explained(lambda: operation.done(retry=self._retry()))
        error = operation.exception(timeout=0) if done else None
        return self._explain(error, zones=True) if error is not None else ""

    @functools.cached_property
    def elsewhere(self) -> str:
        """Which other zones have this type of slice, in a line to follow a refusal; '' where that is not known."""
        accelerator = Accelerator.parse(self.accelerator or "cpu")
        if not accelerator.tpu_type:  # nothing was asked for
            return ""
        told = in_words(
            ask_zones(self._client, self.provider.project, accelerator.tpu_type), self.provider, accelerator
        )
        return f"\n  {told}" if told else ""

    def _of_request(self, request: Any, spec: Any) -> Slice:
        problem, is_short = "", False
        if request.state.state.name == "FAILED":
            status = request.state.failed_data.error
            error = of_status(status.code, status.message)
            problem, is_short = self._explain(error, zones=False), is_of_zone(error)
        return Slice(
            name=spec.node_id or _last_part(request.name),
            zone=_zone(request.name),
            request=request.state.state.name,
            problem=problem,
            ended_by_user=request.state.state.name in SUSPENDED_REQUESTS
            and request.state.state_initiator.name == "USER",
            is_short=is_short,
            labels=dict(spec.node.labels),
            tpu_type=spec.node.accelerator_type,
            spot="spot" in request,
            created=request.create_time.isoformat() if request.create_time else "",
        )

    def _call(self, method: Callable[..., T], request: Any) -> T:
        """One call, again while what hinders it may pass.

        Raises:
            NotThereError, TakenError, CloudError: in words.
        """
        timeout_s = min(CALL_TIMEOUT_S, self._patience_s)
        return self._explained(lambda: method(request=request, retry=self._retry(), timeout=timeout_s), request)

    def _list(self, method: Callable[..., Any], request: Any, what: str) -> list[Any]:
        """All pages of a list; raises as `_call` does."""
        retry, timeout_s = self._retry(), min(CALL_TIMEOUT_S, self._patience_s)

        def fetch() -> list[Any]:
            pages = list(method(request=request, retry=retry, timeout=timeout_s).pages)
            if silent := sorted({_last_part(place) for page in pages for place in page.unreachable}):
                raise exceptions.ServiceUnavailable(f"no answer from {', '.join(silent)}: what is there is not known")
            return [found for page in pages for found in getattr(page, what)]

        return self._explained(retry(fetch), request)

    def _retry(self) -> Retry:
        """Pauses are random, up to twice as long each time: many clients do not come back at one moment."""
        timeout_s = min(RETRY_FOR_S, self._patience_s)
        return Retry(predicate=may_pass, initial=FIRST_RETRY_S, maximum=10.0, multiplier=2.0, timeout=timeout_s)

    def _explained(self, act: Callable[[], T], request: Any = None) -> T:
        try:
            return act()
        except exceptions.NotFound as error:
            raise NotThereError(self._words(error, request)) from error
        except exceptions.AlreadyExists as error:
            raise TakenError(self._words(error, request)) from error
        except exceptions.RetryError as error:
            raise CloudError(self._words(error.cause or error, request)) from error
        except (exceptions.GoogleAPICallError, GoogleAuthError) as error:
            raise CloudError(self._words(error, request)) from error

    def _words(self, error: BaseException, request: Any) -> str:
        call = type(request).__name__.removesuffix("Request") if request is not None else "Cloud TPU"
        where = f"{self.provider.project}, {self.provider.zone}"
        zones = isinstance(request, tpu_v2.CreateQueuedResourceRequest | tpu_v2.ListQueuedResourcesRequest)
        return f"{call} ({where}): {self._explain(error, zones=zones)}"

    def _explain(self, error: BaseException, *, zones: bool) -> str:
        """In words; with what other zones have, where that is asked for and may help."""
        words = explain(error, self.provider, self.accelerator)
        return words + self.elsewhere if zones and is_of_zone(error) else words


class NotThereError(CloudError):
    """What was named is not there."""


class TakenError(CloudError):
    """The name is taken, maybe by an earlier try of the same call."""


def _of_node(node: Any) -> Slice:
    health = node.health.name
    return Slice(
        name=_last_part(node.name),
        zone=_zone(node.name),
        node=node.state.name,
        health="" if health in ("HEALTHY", "HEALTH_UNSPECIFIED") else health,
        labels=dict(node.labels),
        tpu_type=node.accelerator_type,
        addresses=[(endpoint.ip_address, endpoint.access_config.external_ip) for endpoint in node.network_endpoints],
        spot=node.scheduling_config.spot,
        created=node.create_time.isoformat() if node.create_time else "",
    )


def _zone(name: str) -> str:
    """Of the full name of something: projects/P/locations/ZONE/..."""
    return name.split("/")[3]


def _last_part(name: str) -> str:
    return name.rpartition("/")[2]
