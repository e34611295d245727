"""A Cloud TPU of tests: google's own messages over TLS, states that go on with time, errors when a test orders them.

What it hands out as machines comes from a pool: addresses of nobody, or test hosts that have an sshd.
"""

import concurrent.futures
import dataclasses
import datetime
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import grpc
from google.cloud import tpu_v2
from google.cloud.location import locations_pb2
from google.longrunning import operations_pb2
from google.protobuf import any_pb2, empty_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2

from cluster.accelerators import Accelerator, tpu_names

SERVICE = "google.cloud.tpu.v2.Tpu"
METHODS: dict[str, tuple[Any, Any]] = {
    "ListQueuedResources": (tpu_v2.ListQueuedResourcesRequest, tpu_v2.ListQueuedResourcesResponse),
    "ListAcceleratorTypes": (tpu_v2.ListAcceleratorTypesRequest, tpu_v2.ListAcceleratorTypesResponse),
    "ListNodes": (tpu_v2.ListNodesRequest, tpu_v2.ListNodesResponse),
    "CreateQueuedResource": (tpu_v2.CreateQueuedResourceRequest, None),
    "DeleteQueuedResource": (tpu_v2.DeleteQueuedResourceRequest, None),
    "DeleteNode": (tpu_v2.DeleteNodeRequest, None),
}
ZONES = {"us-central2-b": ("v4",), "us-west4-a": ("v5litepod",), "us-east5-b": ("v6e", "v5litepod")}
ANYWHERE = "-"
LATER_S = 3600.0
RequestState = tpu_v2.QueuedResourceState.State
NodeState = tpu_v2.Node.State


class Machines(Protocol):
    """Where machines come from."""

    def take(self, slice_: str, count: int, metadata: Mapping[str, str]) -> Sequence[tuple[str, str]]:
        """(internal, external) address of each; they boot."""
        ...

    def give_back(self, slice_: str) -> None:
        """All of a slice are gone at once."""
        ...


class NoMachines:
    """Addresses at which no machine is; nothing that is sent there leaves this one."""

    def take(self, slice_: str, count: int, metadata: Mapping[str, str]) -> Sequence[tuple[str, str]]:
        return [(f"127.0.1.{10 + worker}", f"127.0.2.{10 + worker}") for worker in range(count)]

    def give_back(self, slice_: str) -> None:
        pass


@dataclasses.dataclass
class Order:
    """What a test wants to happen at a call.

    Attributes:
        method: of the API.
        code: gRPC's name of the error.
        message: of it.
        reason: in its ErrorInfo; '': it has none.
        times: how often.
        done_first: the call is carried out, and only its answer is lost.
        delay_s: before anything happens.
    """

    method: str
    code: str = ""
    message: str = ""
    reason: str = ""
    times: int = 1
    done_first: bool = False
    delay_s: float = 0.0


class Refusal(Exception):
    """An answer that is no answer."""

    def __init__(self, code: str, message: str, reason: str = ""):
        super().__init__(message)
        self.code, self.message, self.reason = code, message, reason


class FakeTpu:
    """What is there, and how it goes on.

    Args:
        machines: where they come from.
        waiting_s, provisioning_s, deleting_s: how long a request is in that state.
        project: the only one that there is.

    Attributes:
        calls: (method, name) of all calls, as they came in.
        secrets: what clients have shown to be let in.
        zone_delay_s: how long it takes, by zone, to say which types are there.
        silent_zones: of which lists say that they do not answer.
    """

    def __init__(
        self, machines: Machines, *, waiting_s: float = 0.4, provisioning_s: float = 0.4, deleting_s: float = 0.3,
        project: str = "test-project",
    ):  # fmt: skip
        self._machines, self._project = machines, project
        self._waiting_s, self._provisioning_s, self._deleting_s = waiting_s, provisioning_s, deleting_s
        self._lock = threading.RLock()
        self._requests: dict[str, Any] = {}
        self._since: dict[str, float] = {}  # when a request, or a TPU VM without one, came into its state
        self._nodes: dict[str, Any] = {}
        self._orders: list[Order] = []
        self._operations: dict[str, status_pb2.Status | None] = {}
        self._stop_at: tuple[int, str] | None = None
        self._stopped, self._go_on = threading.Event(), threading.Event()
        self.partial: set[str] = set()
        self.zone_delay_s: dict[str, float] = {}
        self.silent_zones: set[str] = set()
        self.calls: list[tuple[str, str]] = []
        self.secrets: set[str] = set()

    # -- what a test orders and asks

    def order(self, method: str, **what: Any) -> None:
        """See `Order`; those of a method are carried out one after the other."""
        self._orders.append(Order(method, **what))

    def make_partial(self, name: str) -> None:
        """That slice will lack its last machine."""
        self.partial.add(name)

    def make_node(self, name: str, tpu_type: str, zone: str, metadata: Mapping[str, str]) -> None:
        """A TPU VM that somebody has made without a request."""
        node = tpu_v2.Node(accelerator_type=tpu_type, metadata=dict(metadata), state=NodeState.READY)
        self._place(f"projects/{self._project}/locations/{zone}/nodes/{name}", node)

    def preempt(self, name: str) -> None:
        """Google takes a slice away."""
        with self._lock:
            self._node(name).state = NodeState.PREEMPTED
            request = next((r for key, r in self._requests.items() if key.endswith(f"/{name}")), None)
            if request is not None:
                self._set(request, RequestState.SUSPENDED)
        self._machines.give_back(name)

    def suspend(self, name: str, by: str = "SERVICE") -> None:
        """A slice begins to be taken away, by Google or by the order of a USER; its machines are there yet."""
        with self._lock:
            request = self.request(name)
            request.state.state_initiator = tpu_v2.QueuedResourceState.StateInitiator[by]
            self._set(request, RequestState.SUSPENDING)

    def stop(self, name: str) -> None:
        """A person stops a TPU VM."""
        with self._lock:
            self._node(name).state = NodeState.STOPPED
        self._machines.give_back(name)

    def fail(self, name: str, code: int, message: str) -> None:
        """A request fails."""
        request = next(r for key, r in self._requests.items() if key.endswith(f"/{name}"))
        request.state.failed_data = tpu_v2.QueuedResourceState.FailedData()
        request.state.failed_data.error.code, request.state.failed_data.error.message = code, message
        self._set(request, RequestState.FAILED)

    def health(self, name: str, health: str) -> None:
        self._node(name).health = tpu_v2.Node.Health[health]

    def there(self) -> dict[str, str]:
        """`{name: state}` of all that is there and may be billed."""
        with self._lock:
            self._go()
            found = {key: request.state.state.name for key, request in self._requests.items()}
            return found | {key: node.state.name for key, node in self._nodes.items()}

    def request(self, name: str) -> Any:
        """What was asked for under that name, as google's client would show it."""
        return next(request for key, request in self._requests.items() if key.endswith(f"/{name}"))

    def call_log(self) -> list[tuple[str, str]]:
        return self.calls

    def shown_secrets(self) -> set[str]:
        return self.secrets

    def stop_at(self, call: int, when: str) -> None:
        """The call of that number (from 0) stops `before` it is carried out, or `after`, until `go_on`."""
        self._stopped.clear()
        self._go_on.clear()
        self.calls.clear()
        self._stop_at = (call, when)

    def stopped(self, timeout_s: float) -> bool:
        """Whether it has stopped, or does within that time."""
        return self._stopped.wait(timeout_s)

    def go_on(self) -> None:
        self._stop_at = None
        self._go_on.set()

    # -- how it goes on

    def _go(self) -> None:
        now = time.monotonic()
        for key, request in list(self._requests.items()):
            age, state = now - self._since[key], request.state.state
            if state == RequestState.WAITING_FOR_RESOURCES and age > self._waiting_s:
                self._set(request, RequestState.PROVISIONING)
                self._begin_node(request)
            elif state == RequestState.PROVISIONING and age > self._provisioning_s:
                self._set(request, RequestState.ACTIVE)
                self._node(request.tpu.node_spec[0].node_id).state = NodeState.READY
            elif state == RequestState.DELETING and age > self._deleting_s:
                self._drop_node(request.tpu.node_spec[0].node_id)
                del self._requests[key]
        for key, node in list(self._nodes.items()):
            if node.state == NodeState.DELETING and now - self._since[key] > self._deleting_s:
                self._drop_node(key.rpartition("/")[2])

    def _begin_node(self, request: Any) -> None:
        asked = request.tpu.node_spec[0]
        node = tpu_v2.Node(tpu_v2.Node.pb(asked.node))
        node.state, node.queued_resource = NodeState.CREATING, request.name
        self._place(f"{asked.parent}/nodes/{asked.node_id}", node)

    def _place(self, key: str, node: Any) -> None:
        name = key.rpartition("/")[2]
        count = Accelerator.parse(f"tpu-{node.accelerator_type}").hosts_per_slice - (name in self.partial)
        node.name = key
        for internal, external in self._machines.take(name, count, dict(node.metadata)):
            access = tpu_v2.AccessConfig(external_ip=external if node.network_config.enable_external_ips else "")
            node.network_endpoints.append(tpu_v2.NetworkEndpoint(ip_address=internal, access_config=access))
        self._nodes[key], self._since[key] = node, time.monotonic()

    def _drop_node(self, name: str) -> None:
        for key in [key for key in self._nodes if key.endswith(f"/nodes/{name}")]:
            if self._nodes.pop(key).state != NodeState.PREEMPTED:
                self._machines.give_back(name)

    def _node(self, name: str) -> Any:
        return next(node for key, node in self._nodes.items() if key.endswith(f"/nodes/{name}"))

    def _set(self, request: Any, state: Any) -> None:
        request.state.state = state
        self._since[request.name] = time.monotonic()

    # -- calls

    def answer(self, method: str, request: Any) -> Any:
        """One call.

        Raises:
            Refusal: as ordered, or as the real one would.
        """
        number = len(self.calls)
        self.calls.append((method, getattr(request, "name", "") or getattr(request, "queued_resource_id", "")))
        self._maybe_stop(number, "before")
        order = next((order for order in self._orders if order.method in (method, "*") and order.times), None)
        if order is not None:
            order.times -= 1
            time.sleep(order.delay_s)
            if order.code and not order.done_first:
                raise Refusal(order.code, order.message, order.reason)
        if method == "ListAcceleratorTypes":  # many at once
            return self._ListAcceleratorTypes(request)
        with self._lock:
            self._go()
            done = getattr(self, f"_{method}")(request)
        self._maybe_stop(number, "after")
        if order is not None and order.code:
            raise Refusal(order.code, order.message, order.reason)
        return done

    def _maybe_stop(self, number: int, when: str) -> None:
        if self._stop_at == (number, when):
            self._stopped.set()
            self._go_on.wait(60)

    def _zone(self, parent: str) -> str:
        _, project, _, zone = parent.split("/")
        if project != self._project:
            raise Refusal("PERMISSION_DENIED", f"Permission 'tpu.nodes.list' denied on 'projects/{project}'")
        if zone not in (*ZONES, ANYWHERE):
            raise Refusal("NOT_FOUND", f"Location {zone} is not found or access is unauthorized.")
        return zone

    def _ListQueuedResources(self, request: Any) -> Any:
        zone = self._zone(request.parent)
        found = [r for key, r in self._requests.items() if self._is_listed(key, zone)]
        return tpu_v2.ListQueuedResourcesResponse(queued_resources=found, unreachable=self._unreachable(request))

    def _ListNodes(self, request: Any) -> Any:
        zone = self._zone(request.parent)
        found = [n for key, n in self._nodes.items() if self._is_listed(key, zone)]
        return tpu_v2.ListNodesResponse(nodes=found, unreachable=self._unreachable(request))

    def _is_listed(self, key: str, zone: str) -> bool:
        own = key.split("/")[3]
        return zone in (ANYWHERE, own) and own not in self.silent_zones

    def _unreachable(self, request: Any) -> list[str]:
        parent, _, asked = request.parent.rpartition("/")
        return [f"{parent}/{zone}" for zone in sorted(self.silent_zones) if asked in (ANYWHERE, zone)]

    def _ListAcceleratorTypes(self, request: Any) -> Any:
        zone = self._zone(request.parent)
        sizes = [name.removeprefix("tpu-") for generation in ZONES[zone] for name in tpu_names(generation)]
        time.sleep(self.zone_delay_s.get(zone, 0.0))
        types = [tpu_v2.AcceleratorType(name=f"{request.parent}/acceleratorTypes/{size}", type_=size) for size in sizes]
        return tpu_v2.ListAcceleratorTypesResponse(accelerator_types=types)

    def locations(self, request: Any) -> Any:
        """Its zones, and one that is closed to the project."""
        zones = (*ZONES, "us-central1-f")
        found = [locations_pb2.Location(name=f"{request.name}/locations/{zone}", location_id=zone) for zone in zones]
        return locations_pb2.ListLocationsResponse(locations=found)

    def _CreateQueuedResource(self, request: Any) -> Any:
        zone = self._zone(request.parent)
        name = f"{request.parent}/queuedResources/{request.queued_resource_id}"
        [asked] = request.queued_resource.tpu.node_spec
        if asked.node.accelerator_type.partition("-")[0] not in ZONES[zone]:
            raise Refusal("INVALID_ARGUMENT", f"accelerator type {asked.node.accelerator_type} not found in {zone}")
        if name in self._requests or f"{asked.parent}/nodes/{asked.node_id}" in self._nodes:
            raise Refusal("ALREADY_EXISTS", f"Resource '{name}' already exists")
        made = tpu_v2.QueuedResource(tpu_v2.QueuedResource.pb(request.queued_resource))
        made.name, made.create_time = name, datetime.datetime.now(datetime.UTC)
        self._requests[name] = made
        self._set(made, RequestState.WAITING_FOR_RESOURCES)
        return self._operation(request.parent)

    def _DeleteQueuedResource(self, request: Any) -> Any:
        found = self._requests.get(request.name)
        if found is None:
            raise Refusal("NOT_FOUND", f"Resource '{request.name}' was not found")
        if found.state.state == RequestState.PROVISIONING:
            raise Refusal("FAILED_PRECONDITION", "a queued resource that is being provisioned cannot be deleted")
        if found.state.state == RequestState.ACTIVE and not request.force:
            raise Refusal("FAILED_PRECONDITION", "it has nodes; set force to delete them too")
        self._set(found, RequestState.DELETING)
        return self._operation(request.name)

    def _DeleteNode(self, request: Any) -> Any:
        if request.name not in self._nodes:
            raise Refusal("NOT_FOUND", f"Resource '{request.name}' was not found")
        self._nodes[request.name].state = NodeState.DELETING
        self._since[request.name] = time.monotonic()
        return self._operation(request.name)

    def refuse_operation(self, code: int, message: str) -> None:
        """The newest request is found to be impossible only after its call was answered."""
        self._operations[list(self._operations)[-1]] = status_pb2.Status(code=code, message=message)
        self._requests.pop(list(self._requests)[-1])

    def _operation(self, parent: str) -> operations_pb2.Operation:
        name = f"{'/'.join(parent.split('/')[:4])}/operations/{len(self._operations)}"
        self._operations[name] = None
        return operations_pb2.Operation(name=name)

    def operation(self, name: str) -> operations_pb2.Operation:
        error = self._operations[name]
        packed = any_pb2.Any()
        packed.Pack(empty_pb2.Empty())
        return operations_pb2.Operation(name=name, done=error is not None, error=error)


class TpuServer:
    """The fake behind a port.

    Args:
        fake: what answers.
        address: to listen on.
        folder: where the certificate of `address` is put, `roots.pem`, which clients must be told to trust.

    Attributes:
        fake: what answers from now on.
        endpoint: HOST:PORT.
        roots: the file.
    """

    def __init__(self, fake: FakeTpu, folder: Path, address: str = "127.0.0.1"):
        from tests.provision.credentials import make_certificate

        self.fake = fake
        self.roots = folder / "roots.pem"
        key = make_certificate(address, self.roots)
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(16))
        handlers = {method: self._handler(method, request, response) for method, (request, response) in METHODS.items()}
        operations = {
            "GetOperation": grpc.unary_unary_rpc_method_handler(
                lambda request, context: self.fake.operation(request.name),
                operations_pb2.GetOperationRequest.FromString,
                operations_pb2.Operation.SerializeToString,
            )
        }
        locations = {
            "ListLocations": grpc.unary_unary_rpc_method_handler(
                lambda request, context: self.fake.locations(request),
                locations_pb2.ListLocationsRequest.FromString,
                locations_pb2.ListLocationsResponse.SerializeToString,
            )
        }
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler("google.cloud.location.Locations", locations),
                grpc.method_handlers_generic_handler(SERVICE, handlers),
                grpc.method_handlers_generic_handler("google.longrunning.Operations", operations),
            )
        )
        credentials = grpc.ssl_server_credentials([(key, self.roots.read_bytes())])
        self.endpoint = f"{address}:{self._server.add_secure_port(f'{address}:0', credentials)}"
        self._server.start()

    def close(self) -> None:
        self._server.stop(0).wait()

    def _handler(self, method: str, request_type: Any, response_type: Any) -> grpc.RpcMethodHandler:
        def call(request: Any, context: grpc.ServicerContext) -> Any:
            bearer = dict(context.invocation_metadata()).get("authorization", "")
            if not bearer.startswith("Bearer "):
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "Request had no credentials")
            self.fake.secrets.add(bearer.removeprefix("Bearer "))
            try:
                return self.fake.answer(method, request)
            except Refusal as refusal:
                context.abort_with_status(_status(refusal))

        answer = response_type.serialize if response_type else operations_pb2.Operation.SerializeToString
        return grpc.unary_unary_rpc_method_handler(call, request_type.deserialize, answer)


def _status(refusal: Refusal) -> Any:
    from grpc_status import rpc_status

    status = status_pb2.Status(code=code_pb2.Code.Value(refusal.code), message=refusal.message)
    if refusal.reason:
        detail = any_pb2.Any()
        detail.Pack(error_details_pb2.ErrorInfo(reason=refusal.reason, domain="googleapis.com"))
        status.details.append(detail)
    return rpc_status.to_status(status)
