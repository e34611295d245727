"""What is said about a cloud's refusals."""

import pytest

from cluster.launcher_errors import advice

MACHINES = {"region": "us-west-2", "machine_type": "p5.48xlarge"}


@pytest.mark.parametrize(
    ("kind", "code", "message", "words"),
    [
        ("ClientError", "InsufficientInstanceCapacity", "", "us-west-2a,us-west-2b"),
        ("ClientError", "VcpuLimitExceeded", "", "ask for more under Service Quotas, EC2, in us-west-2"),
        ("ClientError", "InvalidParameterValue", "Invalid value 'p5.48xlarge' for InstanceType", "no instance type"),
        ("ClientError", "InvalidParameterValue", "of something else", ""),
        ("ClientError", "InvalidKeyPair.NotFound", "", "no key pair of that name in us-west-2"),
        ("ClientError", "AuthFailure", "", "aws sts get-caller-identity"),
        ("NoCredentialsError", "", "", "aws configure"),
        ("EndpointConnectionError", "", "", "is the region's name right"),
    ],
)
def test_advice(kind: str, code: str, message: str, words: str) -> None:
    found = advice(kind, code, message, MACHINES)
    assert (words in found) if words else found == ""
