"""The environment barrier: right after the rendezvous, every rank compares what it computes with and in.

Another package version, flag, precision or code on one host changes results without changing any program's text; it
is refused before anything is compiled.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from workloads.agreement.majority import name_ranks, vote
from workloads.errors import EnvironmentMismatchError
from workloads.exchange import Exchange
from workloads.versions import version_of, versions
from workloads.words import first_of

COMPILER_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE")
VARIABLES = (*COMPILER_VARIABLES, "PYTHONHASHSEED")
PREFIXES = ("JAX_",)
# What compiles programs, and shows in no program's text. The ranks of a script are compared in COMPILER_... alone:
# each may have other variables of its own, other packages and other devices, and mean it.
COMPILERS = (
    "jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda12-pjrt", "jax-cuda13-plugin", "jax-cuda13-pjrt",
    "jax-rocm7-plugin", "jax-rocm7-pjrt",
)  # fmt: skip
COMPILER_OPTIONS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
)
# Where a host keeps things, and how it logs, shows in no result.
PRIVATE_FLAGS = ("--xla_dump", "--xla_gpu_per_fusion_autotune_cache_dir", "--xla_gpu_cuda_data_dir")
PRIVATE_OPTIONS = (
    "jax_compilation_cache",
    "jax_persistent_cache",
    "jax_dump",
    "jax_debug_log_modules",
    "jax_logging_level",
    "jax_log_compiles",
    "jax_explain_cache_misses",
    "jax_raise_persistent_cache_errors",
    "jax_cuda_visible_devices",
    "jax_rocm_visible_devices",
    "jax_default_device",
    "jax_oneapi_visible_devices",
    "jax_cross_host_trans",  # addresses and time-outs
)
SHOWN_CHARACTERS = 160
SHOWN_HOSTS = 4

Environment = Mapping[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvironmentDifference:
    """One thing that is not the same everywhere.

    Attributes:
        key: what differs, as `version jax`.
        values: `{rank: what it has}`; `-` where it has none.
    """

    key: str
    values: Mapping[int, str]

    def sentence(self, hosts: Mapping[int, str]) -> str:
        """`version jax: rank 1 (host-1) has 0.10.1, expected 0.10.2 as rank 0 (host-0)`."""
        ballot = vote(self.values)
        if ballot.has_majority:
            expected = f"expected {self._show(ballot.groups[0])} as on {_named(ballot.groups[0], hosts)}"
            odd = "; ".join(f"{_named(group, hosts)}: got {self._show(group)}" for group in ballot.groups[1:])
            return f"{self.key}: {odd}, {expected}"
        return f"{self.key}: " + "; ".join(f"{_named(group, hosts)}: {self._show(group)}" for group in ballot.groups)

    def _show(self, group: Sequence[int]) -> str:
        value = self.values[group[0]]
        return value if len(value) <= SHOWN_CHARACTERS else f"{value[:SHOWN_CHARACTERS]}..."


def describe_environment(extra: Mapping[str, Any]) -> dict[str, str]:
    """What this process computes with: versions, variables, JAX's options, devices.

    Args:
        extra: more to compare, as `{"code": digest, "config": {...}, "seed": 0, "attempt": id}`; values that JSON
            can hold, whose entries are compared one by one where they are dicts.

    Returns:
        `{what: value}`, flat.
    """
    flat = {f"version {name}": version for name, version in versions().items()}
    flat |= {f"version {name}": version_of(name) for name in COMPILERS}
    for name, value in extra.items():
        if isinstance(value, Mapping):
            flat |= {f"{name} {key}": _text(entry) for key, entry in value.items()}
        else:
            flat[name] = _text(value)
    named = [name for name in os.environ if name in VARIABLES or name.startswith(PREFIXES)]
    flat |= {f"variable {name}": _shared_flags(os.environ[name]) for name in named if not _is_private(name.lower())}
    options: Mapping[str, Any] = jax.config.values  # every option, set by variable, by `update` or by default
    flat |= {f"option {name}": _text(value) for name, value in options.items() if not _is_private(name)}
    kinds = sorted({device.device_kind for device in jax.local_devices()})
    return flat | {
        "device kind": ", ".join(kinds),
        "devices of the host": str(jax.local_device_count()),
        "platform": jax.default_backend(),
    }


def describe_compiler() -> dict[str, str]:
    """What compiles the programs of this process, as it is known before there are devices.

    Bringing up the devices here would fix options that a script may still set.

    Returns:
        `{what: value}`, flat.
    """
    found = {f"version {name}": version_of(name) for name in COMPILERS}
    found |= {f"variable {name}": _shared_flags(os.environ.get(name, "")) for name in COMPILER_VARIABLES}
    options: Mapping[str, Any] = jax.config.values
    return found | {f"option {name}": _text(options.get(name)) for name in COMPILER_OPTIONS}


def check_environment(environment: Environment, *, exchange: Exchange, host: str) -> None:
    """Refuses to go on where ranks differ; every rank must call it.

    Args:
        environment: as `describe_environment` gives it.
        exchange: messages between all ranks.
        host: this host's name.

    Raises:
        EnvironmentMismatchError: on every rank, naming each difference, the odd hosts, and expected against got.
        TimeoutError: naming the ranks that did not come.
    """
    digest = hashlib.sha256(json.dumps(dict(environment), sort_keys=True).encode()).hexdigest()
    if len(set(exchange.all_gather("environment digest", digest))) == 1:
        return
    posts = exchange.all_gather("environment", [host, dict(environment)])
    hosts = {rank: post[0] for rank, post in zip(exchange.ranks, posts, strict=True)}
    differences = compare({rank: post[1] for rank, post in zip(exchange.ranks, posts, strict=True)})
    lines = "\n".join(f"  {difference.sentence(hosts)}" for difference in differences)
    raise EnvironmentMismatchError(
        f"the hosts do not run in the same environment; nothing has run:\n{lines}\n"
        "Give every host the same packages, variables and files (`spmd-launch doctor` compares them)."
    )


def compare_processors(processor: str, *, exchange: Exchange, host: str) -> str:
    """What to tell of hosts whose processors differ: a result's last bits may, where the CPU computes it.

    Args:
        processor: this host's, see `workloads.processor`; '' where it is not known, or does not compute.
        exchange: messages between all ranks.
        host: this host's name.

    Returns:
        One sentence, the same on all ranks; '' where they do not differ.

    Raises:
        TimeoutError: naming the ranks that did not come.
    """
    having: dict[str, list[str]] = {}
    for name, its_host in exchange.all_gather("processors", [processor, host]):
        if name:
            having.setdefault(name, []).append(its_host)
    if len(having) < 2:
        return ""
    found = "; ".join(f"{name} on {first_of(hosts, SHOWN_HOSTS)}" for name, hosts in having.items())
    return f"hosts have different processors: {found}; results may differ in their last bits between them"


def compare(environments: Mapping[int, Environment]) -> list[EnvironmentDifference]:
    """What is not the same on all ranks, in the order of the names.

    Args:
        environments: `{rank: {what: value}}`.
    """
    keys = sorted({key for environment in environments.values() for key in environment})
    found = []
    for key in keys:
        values = {rank: environment.get(key, "-") for rank, environment in environments.items()}
        if len(set(values.values())) > 1:
            found.append(EnvironmentDifference(key=key, values=values))
    return found


def _named(ranks: Sequence[int], hosts: Mapping[int, str]) -> str:
    return f"{name_ranks(ranks)} ({', '.join(hosts[rank] for rank in ranks)})"


def _is_private(name: str) -> bool:
    return name.startswith(PRIVATE_OPTIONS)


def _shared_flags(value: str) -> str:
    """XLA's flags without those that name a place on this host; other variables as they are."""
    return " ".join(part for part in value.split() if not part.startswith(PRIVATE_FLAGS))


def _text(value: Any) -> str:
    """One value as text; of an object that JSON does not know its name or type, never its address."""
    if isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, default=lambda other: getattr(other, "name", type(other).__name__))
