"""Jobs and functions as objects, where no cluster is needed."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import launcher
from cluster.processes import ProcessId
from cluster.record import Cluster
from cluster.spec import ClusterSpec, LocalProviderSpec
from launcher.errors import FailureError, UserError
from launcher.job import JobState
from launcher.job_folder import JobFolder
from launcher.outputs import write_summary
from launcher.session.clusters import ClusterSession
from launcher.session.functions import settings_of, target_of
from launcher.session.jobs import Job
from tests.conftest import job_spec
from workloads.mcmc.dataset import save_dataset


def ended(state: JobState, message: str = "") -> Job:
    """A job on record whose cluster is gone."""
    folder = JobFolder.create(job_spec("j"), "c")
    result = {"metrics": {"loss": 0.5}, "diagnostics": {"problems": []}, "result_digest": "d"}
    write_summary(folder.path, result, [])
    folder.append("metrics.jsonl", {"rank": 0, "step": 1, "loss": 1.5})
    folder.append_text("logs/attempt-1.rank-1.log", "hello\n")
    folder.write_job(folder.job() | {"state": state, "message": message, "attempt": 1})
    folder.close()
    cluster: Any = None  # asked for nothing
    return Job("j", cluster)


def test_what_an_ended_job_has_found(state_folder: Path) -> None:
    job = ended(JobState.SUCCEEDED)
    result = job.result()
    assert (job.wait(), result.metrics, result.digest) == ("SUCCEEDED", {"loss": 0.5}, "d")
    assert result.integrity["status"] == "nothing-checked" and result.folder == job.folder == state_folder / "jobs/j"
    assert job.metrics() == [{"rank": 0, "step": 1, "loss": 1.5}]
    assert job.logs() == "[1] hello" and job.logs(rank=0) == ""
    assert repr(job) == "Job('j', SUCCEEDED)"
    with pytest.raises(UserError, match=r"job j \(psum-check\) has left no draws"):
        job.inference_data()
    draws = {"mu": np.arange(8.0).reshape(2, 4)}
    save_dataset(job.folder / "results" / "chains.nc", draws, {"lp": np.zeros((2, 4))})
    data = job.inference_data()
    (job.folder / "results" / "chains.nc").unlink()
    assert np.array_equal(data["posterior"]["mu"], draws["mu"]) and set(data.children) == {"posterior", "sample_stats"}


def test_what_has_failed_has_no_result(state_folder: Path) -> None:
    with pytest.raises(FailureError, match="job j FAILED: rank 1 raised"):
        ended(JobState.FAILED, "rank 1 raised").result()


def test_a_job_of_a_cluster_is_not_another_ones_that_has_its_name(state_folder: Path) -> None:
    spec = ClusterSpec(name="b", provider=LocalProviderSpec(), num_hosts=1, devices_per_host=1)
    cluster = Cluster(
        spec=spec, cluster_id="c1", holder=ProcessId(pid=1, started=0.0), gcs_address="", run_folder="", hosts=(),
        created="",
    )  # fmt: skip
    session = ClusterSession(cluster)
    JobFolder.create(job_spec("j"), "a").close()
    with pytest.raises(UserError, match="cluster 'b' has no job 'j' on record; that of this name is of 'a'"):
        session.job("j")
    jobs = state_folder / "jobs"
    (jobs / "j").rename(jobs / "aside")
    JobFolder.create(dataclasses.replace(job_spec("j"), job_id="0c"), "b").close()
    (jobs / "j").rename(jobs / "j.0c")  # as it is called where it arrives while another has the name
    (jobs / "aside").rename(jobs / "j")
    assert session.job("j").name == "j.0c" == session.jobs()[0].name == session.job("j.0c").name


def test_only_a_cluster_that_is_up_can_be_connected_to(state_folder: Path) -> None:
    with pytest.raises(UserError, match="no cluster 'absent' is up"):
        launcher.connect("absent")
    with pytest.raises(UserError, match="no cluster is up"):
        launcher.connect()
    assert Cluster.load("absent") is None
    with pytest.raises(AttributeError):
        launcher.disconnect  # noqa: B018


@dataclasses.dataclass(frozen=True)
class Config:
    steps: int = 3
    rate: float = 0.1
    fast: bool = False
    data: str | None = "x"


def run(config: Config, context: Any) -> None:
    pass


def test_a_config_becomes_the_text_of_a_command_line() -> None:
    assert settings_of(None, {"steps": 5, "fast": True, "data": None, "rate": 1e-3}) == {
        "steps": "5", "fast": "true", "data": "none", "rate": "0.001",
    }  # fmt: skip
    assert settings_of(Config(steps=4), {"rate": 2.0}) == {"steps": "4", "rate": "2.0"}
    for wrong in (Config, {"steps": 4}, 3):
        with pytest.raises(UserError, match="an object of the workload's config, a dataclass"):
            settings_of(wrong, {})


def test_a_function_is_found_by_its_file() -> None:
    here = Path(__file__).parent
    assert target_of(run, here) == "./test_session_jobs.py:run"
    assert target_of(run, here.parent) == "./launcher/test_session_jobs.py:run"
    with pytest.raises(UserError, match=r"only .*/e2e travels to the hosts"):
        target_of(run, here.parent / "e2e")
    with pytest.raises(UserError, match="not at the top level"):
        target_of(lambda config, context: None, here)
    of_a_notebook: dict[str, Any] = {"__name__": "not_a_module"}
    exec("def work(config, context): pass", of_a_notebook)
    with pytest.raises(UserError, match=r"put it into a file and submit './FILE.py:work', or .* cluster.gang\(\)"):
        target_of(of_a_notebook["work"], here)
