"""A cluster over ssh takes itself down while its client is away: every host, and what the client finds afterwards."""

import pytest

from tests.hosts.conftest import Lab

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(400)]


def test_every_host_is_left_clean_and_the_client_learns_how_its_jobs_ended(empty_lab: Lab) -> None:
    lab, cli = empty_lab, empty_lab.cli
    lab.file.write_text(lab.file.read_text() + "idle_down_after: 20s\n")
    cli("up", str(lab.file))
    cli("submit", "psum-check", "--name", "unseen", "--detach")  # and the laptop is closed
    cli.wait_for(lambda: not lab.processes() and not lab.folders(), 120)
    assert cli.job("unseen")["state"] != "SUCCEEDED", "the client has asked, so this test tells nothing"
    head = lab.hosts["h1"]
    cli.wait_for(head.path(f"/root/.spmd-launch/hosts/{head.address}/ended/{lab.name}.json").exists)

    words = "took itself down at "
    assert words in cli("submit", "psum-check", code=2)
    assert words in cli("status", lab.name) and cli.json("status", lab.name)["state"] == "WENT DOWN"
    assert "SUCCEEDED" in cli("status", "unseen") and "unseen" in cli("jobs")
    assert [(found["name"], found["state"]) for found in cli.json("list")["clusters"]] == [(lab.name, "WENT DOWN")]
    assert words in cli("down", lab.name)
    assert not (cli.home / "clusters" / lab.name).exists() and not (cli.home / "ended" / f"{lab.name}.json").exists()
    assert not lab.processes() and not lab.folders()
    lab.purge()
