"""The command line's surface, its speed of thought, and what a reader of the README is told to type."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from launcher.cli.resume_options import CHANGEABLE, KEPT, resume_options
from launcher.cli.submit import submit
from launcher.errors import UserError
from launcher.job import JobOptions
from tests.conftest import ROOT, Cli

SURFACE = {
    "up": ["--dry-run", "--json", "--yes"],
    "down": ["--dry-run", "--force", "--json", "--leftover", "--project", "--purge"],
    "status": ["--json", "--watch"],
    "list": ["--all", "--json", "--project"],
    "submit": ["--check-every", "--checkpoint-every", "--cluster", "--detach", "--inject", "--json", "--keep",
               "--max-failures", "--max-preemptions", "--name", "--no-program-barrier", "--no-wait", "--num-hosts",
               "--on-divergence", "--profile", "--requirements", "--resume", "--seed", "--set", "--watch-launches"],
    "run": ["--cluster", "--detach", "--env", "--json", "--max-failures", "--max-preemptions", "--name",
            "--no-program-barrier", "--no-wait", "--num-hosts", "--requirements", "--toolkit", "--watch-launches"],
    "exec": ["--cluster", "--json", "--rank", "--timeout"],
    "jobs": ["--json", "--older-than", "--prune"],
    "logs": ["--attempt", "--follow", "--rank"],
    "stacks": [],
    "profile": ["--steps"],
    "results": ["--json", "--output"],
    "cancel": [],
    "workloads": ["--cluster", "--json", "--requirements"],
    "accelerators": ["--json"],
    "new": [],
    "doctor": ["--bandwidth", "--json", "--security", "--set", "--wait"],
    "demo": ["--keep"],
}  # fmt: skip

HEAVY = ("ray", "jax", "tensorflow_probability", "flax", "numpy")


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.mark.parametrize("command", SURFACE)
def test_the_surface_is_frozen(cli: Cli, command: str) -> None:
    found = set(re.findall(r"(--[a-z][a-z-]+)", cli(command, "--help"))) - {"--help"}
    assert sorted(found - {"--prune"}) == sorted(set(SURFACE[command]) - {"--prune"})


def test_submit_has_an_option_for_each_of_a_jobs_and_left_out_it_is_the_jobs_default() -> None:
    given = submit.make_context("submit", ["psum-check"]).params
    for field in dataclasses.fields(JobOptions):
        if field.name == "program_barrier":
            assert given["no_program_barrier"] is not field.default
        else:
            assert given[field.name] == field.default, field.name


def resumed(*arguments: str) -> Mapping[str, Any]:
    return resume_options(submit.make_context("submit", ["--resume", "a", *arguments]))


def test_of_a_resumed_job_changes_what_was_given_and_can_be_another() -> None:
    assert resumed("--cluster", "b", "--num-hosts", "2", "--set", "num_draws=9") == {}
    given = ("--max-failures", "3", "--keep", "5", "--on-divergence", "stop", "--no-program-barrier")
    assert resumed(*given) == {"max_failures": 3, "keep": 5, "on_divergence": "stop", "program_barrier": False}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--name", "b"),
        ("--seed", "0"),
        ("--inject", "kill rank=1 step=2"),
        ("--profile", "2:3"),
        ("--requirements", "r"),
    ],
)
def test_what_a_resumed_job_cannot_take_is_refused_by_name(option: str, value: str) -> None:
    with pytest.raises(UserError, match=f"^{option}: "):
        resumed(option, value)


def test_every_option_of_a_job_is_taken_or_refused_beside_resume() -> None:
    names = {field.name for field in dataclasses.fields(JobOptions)}
    assert names == {*CHANGEABLE, "program_barrier"} | (names & KEPT.keys())


def test_all_commands_are_listed(cli: Cli) -> None:
    listed = re.findall(r"^  ([a-z]+)  ", cli("--help"), re.MULTILINE)
    assert listed == list(SURFACE)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["submit", "independent-chains", "--set", "tune=3"],
        ["jobs"],
        ["workloads", "transformer"],
        ["up", str(ROOT / "examples/laptop.yaml"), "--dry-run"],
    ],
)
def test_neither_ray_nor_jax_is_imported_to_answer(tmp_path: Path, arguments: list[str]) -> None:
    check = (
        "import sys\nfrom launcher.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    environment = {**os.environ, "SPMD_LAUNCH_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", check, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr.strip().splitlines()[-1] == "[]", done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sumbit"], "did you mean 'submit'"),
        (["up", "nowhere.yaml"], "nowhere.yaml"),
        (["down", "nothing"], "no cluster 'nothing'"),
        (["results", "nothing"], "no job 'nothing'"),
        (["results", "../x"], "no job"),
        (["status", "nothing"], "no cluster or job 'nothing'"),
        (["submit", "psum-check"], "no cluster is up"),
        (["workloads", "transfomer"], "did you mean 'transformer'"),
        (["cancel", "nothing"], "no job 'nothing'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(cli: Cli, arguments: list[str], words: str) -> None:
    out = cli(*arguments, code=2)
    assert words in out
    assert out.startswith("error: ")
    assert len(out.strip().splitlines()) == 1


def test_a_mistake_in_a_cluster_file_names_line_and_key(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("name: x\nprovider: {type: local}\nnum_host: 2\ndevices_per_host: 1\n")
    out = cli("up", str(file), code=2)
    assert "bad.yaml:3" in out
    assert "num_hosts" in out
    assert not (tmp_path / "clusters").exists()


def test_workloads_lists_every_parameter_with_its_meaning(cli: Cli) -> None:
    params = json.loads(cli("workloads", "sharded-mcmc", "--json"))
    names = {param["name"] for param in params}
    assert {"num_warmup", "num_draws", "num_chains", "step_size", "num_leapfrog_steps", "x64", "precision"} <= names
    assert all(param["help"] for param in params)


def test_the_readme_is_short_and_its_commands_exist() -> None:
    text = (ROOT / "README.md").read_text()
    lines = text.splitlines()
    assert len(lines) < 110
    assert next(number for number, line in enumerate(lines) if "make demo" in line) < 25
    for command in re.findall(r"spmd-launch ([a-z]+)", text):
        assert command in SURFACE, command
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert (ROOT / link.partition("#")[0]).exists(), link


def test_accelerators_are_listed_and_one_is_told_with_its_price(cli: Cli) -> None:
    listed = cli("accelerators")
    assert re.search(r"tpu-v7x-8 to 512 +2 +96 +none\n", listed) and "H100" in listed
    told = cli("accelerators", "tpu-v5e-16")
    assert re.search(r"hosts of a slice +4\n", told) and re.search(r"GB of a device +16\n", told)
    assert re.search(r"us-central1 +19\.20 +3\.92\n", told) and "prices, as read on 2026-11-22" in told
    assert "price                  unknown" in cli("accelerators", "tpu7x-16")
    assert all(len(line) < 80 for line in (listed + told).splitlines() if "https://" not in line)
    assert cli.json("accelerators", "tpu-v3-32")["devices_per_host"] == 8
    assert len(cli.json("accelerators")) > 60
    assert "did you mean 'tpu-v4-16'?" in cli("accelerators", "tpu-v4-17", code=2)
