"""What a cloud answers when it refuses, and what a person can do about it."""

import io
from collections.abc import Mapping
from typing import Any, TextIO

PANIC = "PANIC"  # how Ray marks its last words

_CREDENTIALS = (
    "the credentials are not accepted: `aws sts get-caller-identity` says whose they are (AWS_PROFILE, "
    "AWS_ACCESS_KEY_ID, ~/.aws/credentials); a session that has expired is renewed with `aws sso login`"
)
_RIGHTS = "these credentials may not do that: ask for ec2:RunInstances, ec2:Describe*, ec2:CreateTags, \
ec2:TerminateInstances and what the words above name"
_QUOTA = (
    "the account's quota is used up: ask for more under Service Quotas, EC2, in {region} (running on-demand or spot "
    "instances of this family, counted in vCPUs), or ask for fewer hosts"
)

# Codes of EC2: docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
_AWS = {
    "InsufficientInstanceCapacity": "{region} has not enough {machine_type} free now: try again later, name more "
    "zones (provider.availability_zone: {region}a,{region}b), another region, or a capacity reservation "
    "(node_config.CapacityReservationSpecification); nothing is kept meanwhile",
    "SpotMaxPriceTooLow": "the spot price is above SpotOptions.MaxPrice: raise it, or leave it out",
    "VcpuLimitExceeded": _QUOTA,
    "InstanceLimitExceeded": _QUOTA,
    "MaxSpotInstanceCountExceeded": _QUOTA,
    "AuthFailure": _CREDENTIALS,
    "InvalidClientTokenId": _CREDENTIALS,
    "SignatureDoesNotMatch": _CREDENTIALS,
    "ExpiredToken": _CREDENTIALS,
    "ExpiredTokenException": _CREDENTIALS,
    "RequestExpired": _CREDENTIALS + "; or this machine's clock is wrong",
    "UnauthorizedOperation": _RIGHTS,
    "AccessDenied": _RIGHTS,
    "OptInRequired": "the account has not subscribed to this image or region: open it once in AWS's console",
    "InvalidKeyPair.NotFound": "there is no key pair of that name in {region}: `aws ec2 describe-key-pairs`, or leave "
    "KeyName and auth.ssh_private_key out, and one is made",
    "InvalidAMIID.NotFound": "there is no such image in {region} (each region has its own): ImageId",
    "InvalidAMIID.Malformed": "ImageId is no image: ami-...",
    "InvalidSubnetID.NotFound": "there is no such subnet in {region}: SubnetIds",
    "InvalidGroup.NotFound": "there is no such security group in {region}: SecurityGroupIds",
    "Unsupported": "{machine_type} is not to be had in this zone of {region}: `aws ec2 "
    "describe-instance-type-offerings --location-type availability-zone --filters "
    "Name=instance-type,Values={machine_type}` says where it is",
    "InvalidInstanceType": "there is no instance type {machine_type}: InstanceType",
    "RequestLimitExceeded": "AWS asks for fewer requests, also after several tries: try again in a minute",
}
_WORDS = {
    "NoCredentialsError": "there are none here: `aws configure`, AWS_PROFILE, or AWS_ACCESS_KEY_ID; on a machine of "
    "AWS's an instance profile (IamInstanceProfile)",
    "PartialCredentialsError": "half of the credentials is missing: `aws configure`",
    "ProfileNotFound": "AWS_PROFILE names none of ~/.aws/config",
    "TokenRetrievalError": "the session has expired: `aws sso login`",
    "DefaultCredentialsError": "there are none here: `gcloud auth application-default login`",
    "EndpointConnectionError": "there is no way to it: is the network there, and is the region's name right?",
    "ConnectTimeoutError": "there is no way to it: is the network there, and is the region's name right?",
    "SSLError": "the connection is not trusted: is a proxy between (AWS_CA_BUNDLE)?",
}


def advice(kind: str, code: str, message: str, machines: Mapping[str, Any]) -> str:
    """What to do about an error, or '' where nothing better is known than what the cloud has said.

    Args:
        kind: class of the exception.
        code: of EC2's error; '' if it is none.
        message: of the cloud.
        machines: as JSON, see `cluster.launcher_spec.Machines`.
    """
    kind_of_machine = machines["machine_type"]
    if code == "InvalidParameterValue" and kind_of_machine and kind_of_machine in message:
        code = "InvalidInstanceType"
    words = _AWS.get(code) or _WORDS.get(kind, "")
    return words.format(region=machines["region"], machine_type=machines["machine_type"])


class RefusedError(Exception):
    """What cannot be done, in words."""


class UnsureError(Exception):
    """Raised from what went wrong when machines had been asked for, of which some may be there, or come."""


def is_answer(error: BaseException | None) -> bool:
    """Whether a cloud has refused by this, so that nothing comes of the order; a lost connection says nothing."""
    response = getattr(error, "response", None)  # of boto3's ClientError; what other clouds raise counts as no answer
    told = response if isinstance(response, dict) else {}
    status = told.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
    return bool(told.get("Error", {}).get("Code")) and status < 500


def refusal(error: BaseException, machines: dict[str, Any], printed: str = "") -> str:
    """The innermost reason that the cloud gave, whatever Ray has wrapped around it.

    Args:
        error: of Ray's launcher, or ours.
        machines: that were asked for.
        printed: what Ray has written to standard error: its own checks say why only there, and raise an empty error.
    """
    if isinstance(error, RefusedError):
        return str(error)
    chain = [error]
    while (inner := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(inner)
    for link in chain:
        response = getattr(link, "response", None)
        told = response.get("Error", {}) if isinstance(response, dict) else {}
        code = str(told.get("Code", "") or getattr(link, "category", ""))
        message = str(told.get("Message", "") or getattr(link, "description", "") or link)
        hint = advice(type(link).__name__, code, message, machines)
        if hint or code:
            said = f"{code}: {message}" if code else message
            return f"{machines['cloud']} refuses: {said}" + (f"\n{hint}" if hint else "")
    panics = [line.partition(" -- ")[2] for line in printed.splitlines() if PANIC in line]
    if panics:
        return f"{machines['cloud']}: {panics[-1]}"
    return f"{machines['cloud']}: {type(error).__name__}: {error}"


class Copy(io.StringIO):
    """Remembers what is written, and writes it to a stream."""

    def __init__(self, stream: TextIO):
        super().__init__()
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(text)
        return super().write(text)

    def flush(self) -> None:
        self._stream.flush()
