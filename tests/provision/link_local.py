"""What a machine of a fake cloud finds that a laptop has not: a metadata server at its usual address, with credentials.

A head that ends its own cluster has nothing else to be let in with.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager

from launcher.notices import ADDRESS
from tests.hosts.commands import command
from tests.hosts.host import Host
from tests.hosts.machines import TestHosts
from tests.hosts.network import BRIDGE, within
from tests.metadata_server import Cloud, metadata_server

GOOGLE_TOKEN = "token-of-the-service-account-of-the-machines-of-tests"
PROFILE_KEY, PROFILE_SECRET = "ASIAOFTHEPROFILEOFTESTS", "secret-of-the-instance-profile"


@dataclasses.dataclass(frozen=True)
class MachineImage:
    """What is on the disks of new machines.

    Attributes:
        variables: of everything that comes in over ssh.
        files: `{path: content}`.
    """

    variables: Mapping[str, str]
    files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)

    def write(self, host: Host) -> None:
        """Writes it on the disk of a host that is off."""
        set_env = " ".join(f"{name}={value}" for name, value in self.variables.items())
        for path, content in {**self.files, "etc/ssh/sshd_config.d/image.conf": f"SetEnv {set_env}\n".encode()}.items():
            file = host.disk.upper / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        with (host.disk.upper / "etc/hosts").open("a") as names:
            names.write(f"{ADDRESS} metadata.google.internal\n")


def connect(host: Host) -> None:
    """The metadata server of its set can be asked by a host that is switched on."""
    command("ip", "-n", host.namespace, "route", "add", ADDRESS, "dev", "eth0")


@contextmanager
def _metadata(hosts: TestHosts, documents: Mapping[str, str], *, is_google: bool) -> Iterator[Cloud]:
    switch = hosts.switch_namespace()
    command("ip", "-n", switch.name, "address", "add", f"{ADDRESS}/32", "dev", BRIDGE)
    with ExitStack() as stack:
        server = metadata_server(ADDRESS, 80, is_google=is_google)
        cloud = within(switch, lambda: stack.enter_context(server))
        cloud.documents.update(documents)
        yield cloud


def google_metadata(hosts: TestHosts) -> AbstractContextManager[Cloud]:
    """Google's, with the token of a service account, until the end of the block."""
    root = "/computeMetadata/v1"
    account = {"email": "machines@test-project.iam.gserviceaccount.com", "scopes": [], "aliases": ["default"]}
    token = json.dumps({"access_token": GOOGLE_TOKEN, "expires_in": 3600, "token_type": "Bearer"})
    accounts = f"{root}/instance/service-accounts"
    documents = {
        f"{root}/project/project-id": "test-project",
        f"{root}/universe/universe-domain": "googleapis.com",
        f"{accounts}/default/": json.dumps(account),
        f"{accounts}/default/token": token,
        f"{accounts}/{account['email']}/token": token,
    }
    return _metadata(hosts, documents, is_google=True)


def amazon_metadata(hosts: TestHosts) -> AbstractContextManager[Cloud]:
    """Amazon's, with the credentials of an instance profile, until the end of the block."""
    root = "/latest/meta-data/iam/security-credentials/"
    keys = {
        "Code": "Success",
        "Type": "AWS-HMAC",
        "AccessKeyId": PROFILE_KEY,
        "SecretAccessKey": PROFILE_SECRET,
        "Token": "session-token-of-the-profile",
        "LastUpdated": "2026-01-01T00:00:00Z",
        "Expiration": "2100-01-01T00:00:00Z",
    }
    return _metadata(hosts, {root: "machines", f"{root}machines": json.dumps(keys)}, is_google=False)
