"""A dry run of each example that rents its hosts, as a user types it, against the fakes of their clouds."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import price_table
from cluster.prices import Rental, quotes, total
from tests.conftest import ROOT, Cli

EXAMPLES = ROOT / "examples"


@pytest.fixture
def tpu(tmp_path: Path) -> Iterator[tuple[Cli, str]]:
    """A client of a Cloud TPU in this process, and where that is."""
    pytest.importorskip("google.cloud.tpu_v2", reason="the extra gcp is not installed")
    from tests.provision.credentials import write_service_account
    from tests.provision.fake_tpu import FakeTpu, NoMachines, TpuServer

    write_service_account(tmp_path / "account.json")
    with tempfile.TemporaryDirectory(prefix="slt-") as folder:
        server = TpuServer(FakeTpu(NoMachines()), Path(folder))
        cli = Cli(tmp_path / "home")
        cli.environment |= {
            "GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "account.json"),
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(server.roots),
        }
        yield cli, server.endpoint
        server.close()


@pytest.fixture
def aws(tmp_path: Path) -> Iterator[Cli]:
    """A client of an EC2 in this process."""
    pytest.importorskip("boto3", reason="the extra aws is not installed")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    cli = Cli(tmp_path / "home")
    cli.environment |= {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
    }  # fmt: skip
    yield cli
    server.stop()


def steps_of(out: str) -> list[list[str]]:
    """Verb, kind and name of each step, in order, and the rest of the words."""
    lines = out.partition("step by step:\n")[2].partition("price:")[0].splitlines()
    return [line.split() for line in lines if line.startswith("  ") and not line.startswith("   ")]


def published(product: str, region: str, count: int, *, spot: bool) -> list[str]:
    """What the table of this repository says that they cost, as a dry run shows it."""
    rental = Rental(product=product, region=region, count=count, spot=spot)
    price = total(quotes([rental], price_table.read(price_table.PUBLISHED)))
    assert price is not None
    return [f"price: {price.per_hour:,.2f} USD an hour until it is down", f"as read on {price.date} in", price.source]


def test_a_tpu_slice(tpu: tuple[Cli, str], tmp_path: Path) -> None:
    cli, endpoint = tpu
    text = (EXAMPLES / "tpu-v5e-16.yaml").read_text()
    file = tmp_path / "tpu-v5e-16.yaml"
    text = text.replace("my-project", "test-project")  # as the file says: change it
    file.write_text(text.replace("  type: gcp-tpu\n", f"  type: gcp-tpu\n  endpoint: '{endpoint}'\n"))
    out = cli("up", str(file), "--dry-run")
    assert "cannot be asked" not in out and out.endswith("Nothing has been done.\n")
    steps = steps_of(out)
    assert [step[:2] for step in steps[:2]] == [["create", "queued"], ["create", "TPU"]]
    assert steps[0][3:] == ["pod-0", "v5litepod-16,", "spot,", "us-west4-a"]
    assert " ".join(steps[1][3:]) == "pod-0 4 host(s) x 4 device(s)"
    assert [step[:3] for step in steps[2:]] == [["start", "host", f"pod-0-w{worker}"] for worker in range(4)]
    for words in published("gcp/tpu-v5litepod", "us-west4", 16, spot=True):
        assert words in out
    assert not (tmp_path / "home").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # moto's
def test_gpu_machines_of_aws(aws: Cli, tmp_path: Path) -> None:
    out = aws("up", str(EXAMPLES / "ray-aws.yaml"), "--dry-run")
    assert "cannot be asked" not in out and "not known" not in out and out.endswith("Nothing has been done.\n")
    steps = steps_of(out)
    assert [step[:4] for step in steps[:4]] == [["create", "EC2", "instance", f"gpus-{host}"] for host in range(4)]
    assert "p5.48xlarge, us-west-2, on demand" in out
    assert [step[:3] for step in steps[4:]] == [["start", "host", f"gpus-{host}"] for host in range(4)]
    assert "H100:8, the head" in out
    for words in published("aws/p5.48xlarge", "us-west-2", 4, spot=False):
        assert words in out
    assert not (tmp_path / "home").exists()
