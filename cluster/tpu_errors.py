"""What refusals of the Cloud TPU API mean to a person, and which of them may pass. Takes exceptions of its client."""

from collections.abc import Callable

import grpc
from google.api_core import exceptions
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, RefreshError
from google.auth.exceptions import TransportError as AuthTransportError

from cluster.gcp_spec import GcpTpuProviderSpec

_PASSING = (
    exceptions.ServiceUnavailable, exceptions.InternalServerError, exceptions.GatewayTimeout, exceptions.Aborted,
    exceptions.BadGateway, AuthTransportError,
)  # fmt: skip
_NO_STOCK = ("no more capacity", "stockout", "out of capacity", "not enough resources", "insufficient capacity")
_RATE_WORDS = ("rate_limit_exceeded", "per minute", "rate limit")


def may_pass(error: BaseException) -> bool:
    """Whether the same call may go through a little later."""
    if isinstance(error, exceptions.TooManyRequests):  # a quota that is used up is one of these, too
        words = f"{getattr(error, 'reason', '')} {error}".lower()
        return any(word in words for word in _RATE_WORDS)
    return isinstance(error, _PASSING)


def explain(error: BaseException, provider: GcpTpuProviderSpec, accelerator: str = "") -> str:
    """What happened and what to do, in a few lines.

    Args:
        error: of google's client.
        provider: what the cluster file says.
        accelerator: that was asked for; '' where none was.
    """
    said = str(getattr(error, "message", "") or error).strip().splitlines()[:1]
    return f"{said[0] if said else type(error).__name__}\n  {_advice(error, provider, accelerator)}"


def is_of_zone(error: BaseException) -> bool:
    """Whether another zone may have what this one refuses."""
    return _adviser(error) in (_no_stock, _invalid)


def of_status(code: int, message: str) -> BaseException:
    """The reason that a request gives for having failed, as an exception of google's client.

    Args:
        code: of gRPC.
        message: of the API.
    """
    return exceptions.from_grpc_status(_grpc_code(code), message)


def _grpc_code(code: int) -> grpc.StatusCode:
    return next((status for status in grpc.StatusCode if status.value[0] == code), grpc.StatusCode.UNKNOWN)


def _advice(error: BaseException, provider: GcpTpuProviderSpec, accelerator: str) -> str:
    return _adviser(error)(provider, accelerator or "this type")


def _adviser(error: BaseException) -> Callable[[GcpTpuProviderSpec, str], str]:
    return next(advise for is_it, advise in _ADVICE if is_it(error))


def _says(*words: str) -> Callable[[BaseException], bool]:
    return lambda error: any(word in str(error).lower() for word in words)


def _is(*kinds: type[BaseException]) -> Callable[[BaseException], bool]:
    return lambda error: isinstance(error, kinds)


def _no_stock(provider: GcpTpuProviderSpec, accelerator: str) -> str:
    return f"the zone has none free: another zone that has {accelerator}, or later; or {_other_ways(provider)}"


def _rate(provider: GcpTpuProviderSpec, accelerator: str) -> str:
    return "too many calls a minute, ours or others' in the project: again in some minutes"


def _quota(provider: GcpTpuProviderSpec, accelerator: str) -> str:
    kind = "preemptible (spot)" if provider.spot else "on-demand"
    return (
        f"the {kind} quota of {accelerator} in {provider.zone} is used up: delete what is not needed "
        f"(`spmd-launch list --all`), ask for more (console: IAM & Admin, Quotas, service tpu.googleapis.com), or take "
        f"what has a quota of its own: {_other_ways(provider)}"
    )


def _disabled(provider: GcpTpuProviderSpec, accelerator: str) -> str:
    return f"the API is off: `gcloud services enable tpu.googleapis.com --project {provider.project}`"


def _permission(provider: GcpTpuProviderSpec, accelerator: str) -> str:
    return (
        f"your account needs roles/tpu.admin in {provider.project}, and roles/iam.serviceAccountUser for the machines' "
        f"service account; which account it is: `gcloud auth list`; is the project right?"
    )


def _invalid(provider: GcpTpuProviderSpec, accelerator: str) -> str:
    where = f"--zone {provider.zone} --project {provider.project}"
    return (
        f"has {provider.zone} {accelerator}, that image and that network? `gcloud compute tpus accelerator-types list "
        f"{where}` tells its types, `gcloud compute tpus tpu-vm versions list {where}` its images"
    )


def _credentials(provider: GcpTpuProviderSpec, accelerator: str) -> str:
    return "no valid credentials: `gcloud auth application-default login`, or GOOGLE_APPLICATION_CREDENTIALS=FILE"


def _passing(provider: GcpTpuProviderSpec, accelerator: str) -> str:
    return "the API did not get better while we tried; the same command again goes on from what is there"


def _look(provider: GcpTpuProviderSpec, accelerator: str) -> str:
    where = f"--zone {provider.zone} --project {provider.project}"
    return f"what is there: `gcloud compute tpus queued-resources list {where}`"


def _other_ways(provider: GcpTpuProviderSpec) -> str:
    if provider.reservation is not None:
        return f"`spot: true` in place of reservation {provider.reservation}"
    return "a `reservation`" if provider.spot else "`spot: true`, or a `reservation`"


# The first that holds; the API has one code for several things, which only its words tell apart.
_ADVICE: tuple[tuple[Callable[[BaseException], bool], Callable[[GcpTpuProviderSpec, str], str]], ...] = (
    (_is(DefaultCredentialsError, RefreshError, exceptions.Unauthenticated), _credentials),
    (_says("has not been used", "service_disabled", "api is disabled"), _disabled),
    (_says(*_NO_STOCK), _no_stock),
    (lambda error: isinstance(error, exceptions.TooManyRequests) and may_pass(error), _rate),
    (_is(exceptions.TooManyRequests), _quota),
    (_is(exceptions.PermissionDenied), _permission),
    (_is(exceptions.InvalidArgument, exceptions.NotFound, exceptions.FailedPrecondition), _invalid),
    (may_pass, _passing),
    (_is(GoogleAuthError), _credentials),
    (lambda error: True, _look),
)
