"""The cluster file: what is read, and the one line that each mistake gets."""

import pickle
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.accelerators import GPU_MODELS
from cluster.config_file import load
from cluster.errors import ClusterConfigError
from cluster.spec import PROVIDERS, ClusterSpec, LocalProviderSpec

ROOT = Path(__file__).resolve().parents[2]

GOOD = """\
name: laptop
provider: {type: local}      # emulated hosts
num_hosts: 2
accelerator: cpu
devices_per_host: 2
env: {}
storage_path: ~/spmd-storage
"""


def _load(folder: Path, text: str | bytes) -> ClusterSpec:
    path = folder / "c.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(path)


def _refusal(folder: Path, text: str | bytes) -> str:
    """The message without the folder: `c.yaml:LINE: KEY: PROBLEM`."""
    with pytest.raises(ClusterConfigError) as refused:
        _load(folder, text)
    message = str(refused.value)
    assert "\n" not in message
    assert message.startswith(f"{folder}/c.yaml")
    return message.removeprefix(f"{folder}/")


def _edit(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def test_a_full_file(tmp_path: Path) -> None:
    assert _load(tmp_path, GOOD) == ClusterSpec(
        name="laptop",
        provider=LocalProviderSpec(),
        num_hosts=2,
        devices_per_host=2,
        accelerator="cpu",
        env={},
        storage_path="~/spmd-storage",
    )


def test_the_smallest_file(tmp_path: Path) -> None:
    spec = _load(tmp_path, "name: a\nprovider: {type: local}\nnum_hosts: 64\ndevices_per_host: 1")
    assert (spec.num_hosts, spec.accelerator, spec.env, spec.storage_path) == (64, "cpu", {}, None)


@pytest.mark.parametrize(
    ("accelerator", "num_hosts", "devices"), [("tpu-v4-16", 4, 4), ("tpu-v5e-8", 1, 8), ("H100:2", 3, 2)]
)
def test_the_accelerator_tells_its_devices(tmp_path: Path, accelerator: str, num_hosts: int, devices: int) -> None:
    text = f"name: a\nprovider: {{type: local}}\nnum_hosts: {num_hosts}\naccelerator: {accelerator}\nemulate: true\n"
    spec = _load(tmp_path, text)
    assert (spec.devices_per_host, spec.hardware.name, spec.jax_hardware.name) == (devices, accelerator, "cpu")
    assert spec == _load(tmp_path, f"{text}devices_per_host: {devices}")
    assert ClusterSpec.from_json(spec.to_json()) == spec


def test_text_is_taken_as_written(tmp_path: Path) -> None:
    env = "env: {DEBUG: yes, LEVEL: 1, VERSION: 1.10, OCTAL: 010, EMPTY: '', TIME: 1:30, QUOTED: \"a: b\"}"
    spec = _load(tmp_path, _edit("env: {}", env))
    assert spec.env == {
        "DEBUG": "yes", "LEVEL": "1", "VERSION": "1.10", "OCTAL": "010", "EMPTY": "", "TIME": "1:30", "QUOTED": "a: b",
    }  # fmt: skip
    assert _load(tmp_path, _edit("laptop", "123")).name == "123"


@pytest.mark.parametrize(
    ("path", "read"),
    [
        ("/data/ckpt", "/data/ckpt"),
        ("'~'", "~"),
        ("~", None),  # a bare tilde is YAML's null
        ("gs://bucket", "gs://bucket"),
        ("s3://bucket/a/b", "s3://bucket/a/b"),
        ("null", None),
        ("", None),
        ("none", "none"),  # no null, but the word
    ],
)
def test_storage_paths_that_are_read(tmp_path: Path, path: str, read: str | None) -> None:
    assert _load(tmp_path, _edit("~/spmd-storage", path)).storage_path == read


def test_an_empty_env_is_no_variables(tmp_path: Path) -> None:
    assert _load(tmp_path, _edit("env: {}", "env:")).env == {}


def test_aliases_of_yaml_are_followed(tmp_path: Path) -> None:
    assert (
        _load(tmp_path, _edit("num_hosts: 2", "num_hosts: &n 2").replace("host: 2", "host: *n")).devices_per_host == 2
    )


STORAGE = "must be an absolute folder (or one that begins with ~), gs://BUCKET/..., s3://BUCKET/... or none, not "
NAME = "must be 1 to 40 of a-z, 0-9 and dashes, beginning and ending with a letter or digit, not "
KEYS = (
    "(allowed: name, provider, num_hosts, devices_per_host, accelerator, emulate, spares, min_hosts, env, python, "
    "storage_path, idle_down_after, max_lifetime)"
)
TYPES = ", ".join(PROVIDERS)
TYPE = f"c.yaml:2: provider.type: must be one of {TYPES}, not "
NO_TYPE = f"c.yaml:2: provider: must be {{type: TYPE}} with a TYPE of {TYPES}, not "
ACCELERATOR = "must be cpu, a GPU and how many a host has (H100:8), or a type of TPU slice (tpu-v4-16), not "
GPUS = f"(known: 1 to 16 of {', '.join(GPU_MODELS)})"
V4 = "(known: tpu-v4-8, tpu-v4-16, tpu-v4-32, tpu-v4-64, tpu-v4-128, tpu-v4-256, tpu-v4-384, tpu-v4-512)"
EMULATE = "with `emulate: true` Ray is told that its hosts have it, and JAX gets CPU devices in its place"
OURS = "is ours: it says which host of which slice a rank is on"
NOT_YAML = "c.yaml:6: not YAML: "
HOSTS = "c.yaml:3: num_hosts: must be a whole number from 1 to 64, not "


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("num_hosts", "num_host", f"c.yaml:3: num_host: no such key; did you mean 'num_hosts'? {KEYS}"),
        ("num_hosts", "workers", f"c.yaml:3: workers: no such key; did you mean 'num_hosts'? {KEYS}"),
        ("env: {}", "zzz: 1", f"c.yaml:6: zzz: no such key {KEYS}"),
        ("env: {}", "<<: {name: b}", f"c.yaml:6: <<: no such key {KEYS}"),
        ("env: {}", "env.A: b", f"c.yaml:6: env.A: no such key; did you mean 'env'? {KEYS}"),
        ("env: {}", "[a]: 1", "c.yaml:6: a key must be a word, not a list"),
        ("env: {}", "name: b", "c.yaml:6: name: is given twice, first in line 1"),
        ("num_hosts: 2\n", "", "c.yaml:1: num_hosts: is missing"),
        ("name: laptop\n", "", "c.yaml:1: name: is missing"),
        ("num_hosts: 2", "num_hosts: 0", f"{HOSTS}0"),
        ("num_hosts: 2", "num_hosts: 65", f"{HOSTS}65"),
        ("num_hosts: 2", "num_hosts: -1", f"{HOSTS}-1"),
        ("num_hosts: 2", "num_hosts: 2.0", f"{HOSTS}'2.0'"),
        ("num_hosts: 2", "num_hosts: 0x2", f"{HOSTS}'0x2'"),
        ("num_hosts: 2", "num_hosts: 02", f"{HOSTS}'02'"),
        ("num_hosts: 2", "num_hosts: '2'", f"{HOSTS}'2'"),
        ("num_hosts: 2", "num_hosts: yes", f"{HOSTS}'yes'"),
        ("num_hosts: 2", "num_hosts:", f"{HOSTS}nothing"),
        ("num_hosts: 2", "num_hosts: [2]", f"{HOSTS}a list"),
        ("num_hosts: 2", "num_hosts: {a: b}", f"{HOSTS}a mapping"),
        ("num_hosts: 2", "num_hosts: " + "9" * 30, f"{HOSTS}'{'9' * 30}'"),
        (
            "host: 2", "host: 0",
            "c.yaml:5: devices_per_host: must be a whole number from 1 to 64, not 0",
        ),
        ("laptop", "My_Laptop", f"c.yaml:1: name: {NAME}'My_Laptop'; did you mean 'my-laptop'?"),
        ("laptop", "-a", f"c.yaml:1: name: {NAME}'-a'; did you mean 'a'?"),
        ("laptop", "../a", f"c.yaml:1: name: {NAME}'../a'; did you mean 'a'?"),
        ("laptop", "a" * 41, f"c.yaml:1: name: {NAME}'{'a' * 41}'; did you mean '{'a' * 40}'?"),
        ("laptop", "''", f"c.yaml:1: name: {NAME}''"),
        ("laptop", "é", f"c.yaml:1: name: {NAME}'é'"),
        ("laptop", "[a]", f"c.yaml:1: name: {NAME}a list"),
        ("type: local", "type: locl", f"{TYPE}'locl'; did you mean 'local'?"),
        ("type: local", "type: gke", f"{TYPE}'gke'"),
        ("type: local", "type: [a]", f"{TYPE}a list"),
        ("type: local", "type: local, zone: a", "c.yaml:2: provider.zone: no such key (allowed: type)"),
        ("type: local", "typ: local", NO_TYPE + "{'typ': 'local'}"),
        ("{type: local}", "local", NO_TYPE + "'local'"),
        ("type: local", "type: local, type: local", "c.yaml:2: provider.type: is given twice, first in line 2"),
        ("or: cpu", "or: tpu", f"c.yaml:4: accelerator: {ACCELERATOR}'tpu'"),
        ("or: cpu", "or: H10:8", f"c.yaml:4: accelerator: {ACCELERATOR}'H10:8'; did you mean 'H100'? {GPUS}"),
        (
            "or: cpu", "or: tpu-v4-17",
            f"c.yaml:4: accelerator: {ACCELERATOR}'tpu-v4-17'; did you mean 'tpu-v4-16'? {V4}",
        ),
        ("or: cpu", "or: H100:2", f"c.yaml:4: accelerator: provider local has cpu, not 'H100:2'; {EMULATE}"),
        ("or: cpu", "or: cpu\nemulate: yes", "c.yaml:5: emulate: must be true or false, not 'yes'"),
        ("or: cpu", "or: cpu\nemulate: true", "c.yaml:5: emulate: is for accelerators that are not there; cpu is"),
        (
            "or: cpu", "or: H100:8\nemulate: true",
            "c.yaml:6: devices_per_host: must be 8, as a host of H100:8 has, not 2",
        ),
        ("env: {}", "env: {MEGASCALE_SLICE_ID: 0}", f"c.yaml:6: env.MEGASCALE_SLICE_ID: {OURS}"),
        ("env: {}", "env: {TPU_WORKER_ID: 0}", f"c.yaml:6: env.TPU_WORKER_ID: {OURS}"),
        ("env: {}", "env: {A: [1]}", "c.yaml:6: env.A: must be text ('' for the empty one), not a list"),
        ("env: {}", "env: {A: }", "c.yaml:6: env.A: must be text ('' for the empty one), not nothing"),
        ("env: {}", "env:\n  A: b\n  A: c", "c.yaml:8: env.A: is given twice, first in line 7"),
        ("env: {}", "env: [A]", "c.yaml:6: env: must be variables and their values, as in {NAME: value}, not a list"),
        (
            "env: {}", "env:\n  A: b\n  1B: c",
            "c.yaml:8: env.1B: the name of a variable is letters, digits and _, beginning with no digit",
        ),
        ("~/spmd-storage", "gcs://b/c", f"c.yaml:7: storage_path: {STORAGE}'gcs://b/c'; did you mean 'gs'?"),
        ("~/spmd-storage", "http://b/c", f"c.yaml:7: storage_path: {STORAGE}'http://b/c'"),
        ("~/spmd-storage", "file:///b", f"c.yaml:7: storage_path: {STORAGE}'file:///b'"),
        ("~/spmd-storage", "gs://", f"c.yaml:7: storage_path: {STORAGE}'gs://'"),
        ("~/spmd-storage", "ckpt", f"c.yaml:7: storage_path: {STORAGE}'ckpt'"),
        ("~/spmd-storage", "[a]", f"c.yaml:7: storage_path: {STORAGE}a list"),
        ("env: {}", "env: *nobody", f"{NOT_YAML}found undefined alias 'nobody'"),
        (
            "env: {}", "env: {",
            "c.yaml:8: not YAML: while parsing a flow mapping, expected ',' or '}', but got '<stream end>'",
        ),
        (
            "env: {}", "\tenv: {}",
            f"{NOT_YAML}while scanning for the next token, found character '\\t' that cannot start any token",
        ),
        (
            "env: {}", "env: {}\n---\nname: b",
            "c.yaml:7: not YAML: expected a single document in the stream, but found another document",
        ),
        ("env: {}", "env: \x01", f"{NOT_YAML}special characters are not allowed"),
    ],
)  # fmt: skip
def test_each_mistake_is_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert _refusal(tmp_path, _edit(old, new)) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "c.yaml:1: is empty; a cluster file begins with `name: NAME`"),
        ("# nothing\n\n", "c.yaml:1: is empty; a cluster file begins with `name: NAME`"),
        ("- name: a\n", "c.yaml:1: must be keys and values, not a list"),
        ("laptop\n", "c.yaml:1: must be keys and values, not 'laptop'"),
        ("~\n", "c.yaml:1: must be keys and values, not nothing"),
        (b"name: a\nnum_hosts: \xff\n", "c.yaml:2: is not UTF-8 text"),
    ],
)
def test_files_that_are_no_cluster_file(tmp_path: Path, text: str | bytes, message: str) -> None:
    assert _refusal(tmp_path, text) == message


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ClusterConfigError, match=r"none\.yaml: cannot be read: No such file or directory$"):
        load(tmp_path / "none.yaml")
    with pytest.raises(ClusterConfigError, match=r": cannot be read: Is a directory$"):
        load(tmp_path)


def test_an_error_survives_pickling(tmp_path: Path) -> None:
    with pytest.raises(ClusterConfigError) as refused:
        _load(tmp_path, "name: a")
    copy = pickle.loads(pickle.dumps(refused.value))
    assert str(copy) == str(refused.value)
    assert (copy.key, copy.problem, copy.where) == ("provider", "is missing", f"{tmp_path}/c.yaml:1")


def test_it_is_read_fast_and_without_ray_or_jax() -> None:
    code = "import cluster.config_file, sys; print(*sys.modules)"
    before = _seconds_of_children()
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    seconds = _seconds_of_children() - before
    roots = {re.split(r"\.", module)[0] for module in ran.stdout.split()}
    assert "yaml" in roots
    assert not roots & {"ray", "jax", "numpy", "workloads", "launcher"}
    assert seconds < 1.5, "0.1 s on a quiet machine, the interpreter's start included"


def _seconds_of_children() -> float:
    """Of a core, which others that use the machine do not add to."""
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
