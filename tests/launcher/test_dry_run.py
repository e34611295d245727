"""What `up` and `down` would do is shown before it is done, and what costs money is agreed to first."""

import contextlib
import datetime
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.plan import Action, host_actions
from cluster.price_table import Row
from cluster.prices import Rental, quotes
from launcher.cli.plan_text import plan_text
from launcher.dry_run import Plan
from tests.conftest import ROOT, Cli

PRICES = """
[[list]]
source = "https://fake.example/prices"
date = 2026-01-02
prices = [{ product = "fake/machine", usd_per_hour = 1.5, regions = ["here"] }]
"""
STEPS = """
`up` of paid, step by step:
  create  fake machine  paid-0  m1
  create  fake machine  paid-1  m1
  start   host          paid-0  the head
  start   host          paid-1
price: 3.00 USD an hour until it is down; disks and traffic not counted
  2 x fake/machine, here, on demand: 1.5 USD each
  as read on 2026-01-02 in
  https://fake.example/prices
""".lstrip()
BEGUN = "the fake cloud was asked to create machines"


class Paid:
    """The command line with a provider that costs money, in a state folder of its own."""

    def __init__(self, folder: Path):
        self.home = folder / "home"
        self.file = folder / "paid.yaml"
        self.file.write_text(
            "name: paid\nprovider: {type: fake-cloud, region: here}\nnum_hosts: 2\ndevices_per_host: 1\n"
        )
        self.lists_nothing = False
        self.home.mkdir()
        (self.home / "prices.toml").write_text(PRICES)

    def __call__(self, *arguments: str, terminal: int = subprocess.DEVNULL) -> subprocess.CompletedProcess[str]:
        on_terminal = terminal != subprocess.DEVNULL
        return subprocess.run(
            [sys.executable, "-m", "tests.launcher.paid_cloud", *arguments],
            env={
                **os.environ,
                "SPMD_LAUNCH_HOME": str(self.home),
                "PYTHONPATH": str(ROOT),
                "FAKE_CLOUD_IS_EMPTY": "1" if self.lists_nothing else "",
            },
            cwd=ROOT,
            stdin=terminal,
            stdout=subprocess.PIPE,
            stderr=terminal if on_terminal else subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )

    def answering(self, answer: str) -> tuple[int, str]:
        """Exit code of `up` at a terminal where a person types this, and what they saw."""
        ours, theirs = pty.openpty()
        seen = b""
        with open(ours, "r+b", buffering=0) as screen:
            with open(theirs, "rb", buffering=0):
                screen.write(answer.encode())
                code = self("up", str(self.file), terminal=theirs).returncode
            with contextlib.suppress(OSError):  # which is the end of it: nobody else has the terminal open
                while some := screen.read(65536):
                    seen += some
        return code, seen.decode().replace("\r\n", "\n")

    def cloud_lists_nothing(self) -> None:
        """From now on: what was there is gone."""
        self.lists_nothing = True

    @property
    def is_untouched(self) -> bool:
        return [path.name for path in self.home.iterdir()] == ["prices.toml"]


@pytest.fixture
def paid(tmp_path: Path) -> Paid:
    return Paid(tmp_path)


def test_a_dry_run_shows_steps_and_price_and_begins_nothing(paid: Paid) -> None:
    done = paid("up", str(paid.file), "--dry-run")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{STEPS}Nothing has been done.\n", "")
    told = json.loads(paid("up", str(paid.file), "--dry-run", "--json").stdout)
    assert [action["verb"] for action in told["actions"]] == ["create", "create", "start", "start"]
    assert told["price"] == {
        "per_hour": 3.0, "date": "2026-01-02", "source": "https://fake.example/prices", "spot": False,
    }  # fmt: skip
    assert paid.is_untouched


def test_what_costs_money_is_refused_where_nobody_can_be_asked(paid: Paid) -> None:
    done = paid("up", str(paid.file))
    refusal = "error: this costs money, and there is no terminal to ask on: --yes agrees to it; nothing was begun\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", STEPS + refusal)
    assert paid.is_untouched
    agreed = paid("up", str(paid.file), "--yes")
    assert agreed.returncode == 1 and BEGUN in agreed.stderr and "step by step" not in agreed.stderr


def test_a_person_at_a_terminal_is_asked(paid: Paid) -> None:
    code, seen = paid.answering("n\n")
    assert code == 2 and paid.is_untouched
    assert STEPS in seen and "Go ahead? [y/N]: " in seen and "error: not agreed to; nothing was begun" in seen
    code, seen = paid.answering("y\n")
    assert code == 1 and BEGUN in seen


def test_what_could_not_be_deleted_stays_on_record_and_is_told_with_what_it_costs(paid: Paid) -> None:
    paid("up", str(paid.file), "--yes")  # its cloud makes nothing, and does not delete what is on record
    for words in (["down", "paid"], ["down", "paid", "--force"]):
        done = paid(*words)
        told = " ".join(done.stderr.split())
        assert done.returncode == 1 and "is down" not in done.stdout and "the fake cloud lists none" not in told
        stays = (
            "what costs money may be there still, so its record stays, --force or not: `spmd-launch down paid` again"
        )
        assert stays in told
    seen = paid("status", "paid").stdout.splitlines()
    assert seen[:2] == [
        "cluster paid: INCOMPLETE",
        "  nothing of it answers, but its machines may be there and cost money: `spmd-launch down paid` ends them, and "
        "looks",
    ]
    assert seen[2].startswith("  asked for ") and " ago: about $0.0" in seen[2]
    assert seen[2].endswith(" so far, at $3.00 an hour (of 2026-01-02), if all are there")
    (listed,) = json.loads(paid("list", "--json").stdout)["clusters"]
    assert "may be there and cost money" in listed["message"] and listed["cost"]["usd_per_hour"] == 3.0


def test_the_price_is_of_what_a_down_ends(paid: Paid) -> None:
    paid("up", str(paid.file), "--yes")
    assert "price: 3.00 USD an hour, no more once it is down" in paid("down", "paid", "--dry-run").stdout
    paid.cloud_lists_nothing()
    out = paid("down", "paid", "--dry-run").stdout
    assert "its cloud lists no machine of it that runs, so nothing is billed by the hour" in " ".join(out.split())
    assert "price" not in out and "USD" not in out
    told = json.loads(paid("down", "paid", "--dry-run", "--json").stdout)
    assert told["price"] is None and told["rentals"] == []


def test_a_mistake_in_the_users_price_table_is_told_before_anything_begins(paid: Paid) -> None:
    (paid.home / "prices.toml").write_text(PRICES.replace("1.5", "-1.5"))
    for arguments in (["--dry-run"], []):
        done = paid("up", str(paid.file), *arguments)
        assert done.returncode == 2 and "prices.toml: list 1, price 1: usd_per_hour: must be USD" in done.stderr
    assert paid.is_untouched


def test_on_hosts_that_cost_nothing(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "home")
    out = cli("up", str(ROOT / "examples/laptop.yaml"), "--dry-run")
    assert "  start   host  laptop-0  emulated, 2 device(s), the head\n" in out and "price: nothing is rented" in out
    assert "--json is for --dry-run" in cli("up", str(ROOT / "examples/laptop.yaml"), "--json", code=2)
    assert "no cluster 'laptop'" in cli("down", "laptop", "--dry-run", code=2)
    assert not (tmp_path / "home").exists()


def test_a_plan_keeps_to_80_columns_and_says_what_is_unknown() -> None:
    actions = [
        Action(verb="create", kind="queued resource", name="pod-0123abcd-request", detail="v5litepod-16, " * 6),
        *host_actions("start", [f"t1v-n-0123abcd-w-{index}" for index in range(2)], "on a machine with a long story"),
    ]
    row = Row(product="a/b", regions=("*",), usd_per_hour=1, date=datetime.date(2026, 1, 2), source="list")
    rentals = [Rental(product="a/b", region="x", count=2), Rental(product="a/b", region="x", count=1, spot=True)]
    plan = Plan(
        command="up", cluster="pod", actions=actions, is_paid=True, quotes=quotes(rentals, [row]), notes=["word " * 40]
    )
    text = plan_text(plan)
    assert max(len(line) for line in text.splitlines()) < 80
    flat = " ".join(text.split())
    assert "price: unknown (1 x a/b, x, spot); prices.toml in the state folder can tell it" in flat
    assert flat.count("v5litepod-16") == 6 and flat.count("word") == 40
    assert not Plan(
        command="up", cluster="pod", actions=[Action(verb="keep", kind="host", name="x")], is_paid=True, quotes=[]
    ).changes_something
