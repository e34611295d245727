"""A cloud of test hosts that speaks EC2: moto's server in one host, and others that it hands out as machines.

No packet leaves the set: moto invents addresses, and only those of running instances lead anywhere, to a test host,
which has the address too, and the credentials of an instance profile.
"""

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from subprocess import DEVNULL, Popen
from typing import Any

import boto3

from tests.hosts.commands import command, wait_until
from tests.hosts.host import Host
from tests.hosts.machines import ROOT, TestHosts, claimed
from tests.provision.ec2_server import PORT
from tests.provision.link_local import MachineImage, amazon_metadata, connect

REGION = "us-west-2"
VPC = "172.31.0.0/16"  # moto's default one
FOLDER = "/run/cloud"
PROFILE = "machines"
ACCESS_KEY, SECRET_KEY = "AKIAFAKEFAKEFAKEFAKE", "fake-secret-access-key-that-nobody-may-print"
CLOUD, MACHINES = "cloud", ("m1", "m2")


class AwsCloud:
    """An EC2 with room for two machines.

    Args:
        hosts: with `cloud`, `m1` and `m2`.

    Attributes:
        ec2: boto3's client.
    """

    def __init__(self, hosts: TestHosts):
        self.hosts, self.server = hosts, hosts[CLOUD]
        self.endpoint = f"http://{self.server.address}:{PORT}"
        self.ec2: Any = boto3.client(
            "ec2", REGION, endpoint_url=self.endpoint, aws_access_key_id="test", aws_secret_access_key="test"
        )
        self._iam: Any = boto3.client(
            "iam", REGION, endpoint_url=self.endpoint, aws_access_key_id="test", aws_secret_access_key="test"
        )
        self._given: dict[str, tuple[str, Host]] = {}  # instance: its address, and the host that it is
        self._stop = threading.Event()
        self._problem: BaseException | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Serves, until left."""
        self.server.path(FOLDER).mkdir()
        self.order()
        argv = [sys.executable, "-m", "tests.provision.ec2_server", FOLDER]
        with self.server.path(f"{FOLDER}/server.log").open("wb") as log:
            process = Popen(self.server.enter(argv, cwd=str(ROOT)), stdin=DEVNULL, stdout=log, stderr=log)
        handing_out = threading.Thread(target=self._hand_out)
        try:
            for name in MACHINES:
                self.hosts[name].kill()
                MachineImage({"AWS_ENDPOINT_URL": self.endpoint}).write(self.hosts[name])
            command("ip", "-n", self.hosts.laptop.namespace, "route", "add", VPC, "dev", "eth0")
            wait_until(self._answers, "moto serves", 60)
            key = self.hosts.identity.with_suffix(".pub").read_bytes()
            self.ec2.import_key_pair(KeyName="test", PublicKeyMaterial=key)
            self._iam.create_instance_profile(InstanceProfileName=PROFILE)
            handing_out.start()
            yield
        finally:
            self._stop.set()
            if handing_out.ident:
                handing_out.join()
            process.kill()
            process.wait()
        if self._problem:
            raise self._problem

    @property
    def variables(self) -> dict[str, str]:
        """Of the environment of its clients."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        }

    def order(self, **orders: Any) -> None:
        """What the server does from now on with the laptop's requests besides serving them; see `ec2_server`."""
        for name in ("requests.log", "paused", "terminations.log"):
            self.server.path(f"{FOLDER}/{name}").unlink(missing_ok=True)
        file = self.server.path(f"{FOLDER}/orders.json")
        file.with_suffix(".new").write_text(json.dumps({"client": self.hosts.laptop.address, **orders}))
        file.with_suffix(".new").replace(file)

    def requests(self) -> list[str]:
        """Actions that the laptop has asked for since the last order."""
        with suppress(FileNotFoundError):
            return self.server.path(f"{FOLDER}/requests.log").read_text().splitlines()
        return []

    def terminations(self) -> list[tuple[str, list[str]]]:
        """Who has ended which machines since the last order: the access key, and the instances."""
        lines = self.server.path(f"{FOLDER}/terminations.log").read_text().splitlines()
        return [(key, instances) for key, *instances in (line.split() for line in lines)]

    def paused(self) -> str:
        """The action of the request that waits; '' if none does."""
        with suppress(FileNotFoundError):
            return self.server.path(f"{FOLDER}/paused").read_text()
        return ""

    def instances(self, *states: str) -> list[dict[str, Any]]:
        """Those in these states; all but the terminated, if none is given."""
        found = [each for r in self.ec2.describe_instances()["Reservations"] for each in r["Instances"]]
        wanted = states or ("pending", "running", "stopping", "stopped", "shutting-down")
        return [each for each in found if each["State"]["Name"] in wanted]

    def host_of(self, instance: str) -> Host:
        """The test host that an instance which runs is."""
        return self._given[instance][1]

    def left(self) -> list[str]:
        """What is there and costs, or was made by us: an empty cloud has none."""
        groups = [each["GroupName"] for each in self.ec2.describe_security_groups()["SecurityGroups"]]
        volumes = [each["VolumeId"] for each in self.ec2.describe_volumes()["Volumes"]]
        return [
            *(f"{each['InstanceId']} {each['State']['Name']}" for each in self.instances()),
            *(group for group in groups if group != "default"),
            *volumes,
        ]

    def _answers(self) -> bool:
        with suppress(Exception):
            self.instances()
            return True
        return False

    def _hand_out(self) -> None:
        """Switches a host on for each instance that runs, and off, with an empty disk, when it has ended."""
        try:
            while not self._stop.is_set():
                running = {each["InstanceId"]: each["PrivateIpAddress"] for each in self.instances("running")}
                for instance in set(self._given) - set(running):
                    self._take(instance)
                for instance in set(running) - set(self._given):
                    self._give(instance, running[instance])
                time.sleep(0.2)
        except BaseException as error:
            self._problem = error
            raise

    def _give(self, instance: str, address: str) -> None:
        taken = [host for _, host in self._given.values()]
        host = next(self.hosts[name] for name in MACHINES if self.hosts[name] not in taken)
        host.start()
        connect(host)
        command("ip", "-n", host.namespace, "address", "add", f"{address}/{VPC.rpartition('/')[2]}", "dev", "eth0")
        host.wait_ready()
        host.set_hosts_line(f"{address} {host.name}")
        host.run(["rm", "-rf", "/root/.spmd-launch"])
        self._given[instance] = (address, host)
        self._translate("-A", address, host)

    def _take(self, instance: str) -> None:
        address, host = self._given.pop(instance)
        self._translate("-D", address, host)
        host.kill()

    def _translate(self, what: str, address: str, host: Host) -> None:
        """The laptop reaches the instance's address, which is the host."""
        rule = f"-t nat {what} OUTPUT -d {address}/32 -j DNAT --to-destination {host.address}"
        command("ip", "netns", "exec", self.hosts.laptop.namespace, "iptables", "-w", *rule.split())


@contextmanager
def aws_cloud() -> Iterator[AwsCloud]:
    """An empty one in a set of test hosts of its own."""
    with claimed((CLOUD, *MACHINES), from_machine=True, bucket=True) as hosts, amazon_metadata(hosts):
        cloud = AwsCloud(hosts)
        with cloud.running():
            yield cloud
