"""Every workload by name. Imports no JAX: `run` is named, and imported only in a rank process."""

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from workloads.errors import ConfigError
from workloads.installed import installed_workloads
from workloads.layout import Layout
from workloads.params import nearest, parse


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkloadSpec:
    """Where a workload's parts live.

    Attributes:
        name: as submitted.
        summary: one line.
        config: `module:class` of its config (a module without JAX); the class has `check(layout)`, which raises
            `ConfigError` where the config does not fit the hosts and devices.
        run: `module:function`, called on every rank as `run(config, context) -> Result`.
    """

    name: str
    summary: str
    config: str
    run: str

    def config_class(self) -> type:
        return load_reference(self.config)

    def run_function(self) -> Callable[..., Any]:
        return load_reference(self.run)


def load_reference(reference: str) -> Any:
    """What `module:name` refers to."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


def _shipped(name: str, summary: str) -> WorkloadSpec:
    package = f"workloads.{name.replace('-', '_')}"
    return WorkloadSpec(name=name, summary=summary, config=f"{package}.config:Config", run=f"{package}.run:run")


WORKLOADS: Mapping[str, WorkloadSpec] = {
    spec.name: spec
    for spec in (
        _shipped("independent-chains", "MCMC chains that never talk to each other, spread over all devices"),
        _shipped("sharded-mcmc", "MCMC over data sharded across all devices of all hosts"),
        _shipped("transformer", "a decoder-only character transformer on a mesh of data and model axes"),
        _shipped("psum-check", "one sum over all devices of all hosts, checked: is the cluster sound, and how fast?"),
        _shipped("bandwidth-check", "latency and bandwidth of the links: over all hosts, and over each pair of them"),
    )
}


def find(name: str) -> WorkloadSpec:
    """The shipped workload of that name.

    Raises:
        ConfigError: there is none; with the nearest match, maybe of an installed package.
    """
    if name not in WORKLOADS:
        raise ConfigError(no_such_workload(name))
    return WORKLOADS[name]


def no_such_workload(name: str) -> str:
    """That there is none, and which there are, those of installed packages among them."""
    names = [*WORKLOADS, *dict.fromkeys(workload.name for workload in installed_workloads())]
    return f"no workload {name!r}{nearest(name, names, {})} (there are: {', '.join(names)})"


def checked_config(name: str, settings: Mapping[str, str], layout: Layout) -> Any:
    """The config of a workload, every parameter parsed and the whole held against the layout.

    Args:
        name: of the workload.
        settings: `{parameter: text}`; the rest is at its default.
        layout: hosts and devices that it must fit.

    Raises:
        ConfigError: with the parameter, what was given, and what would fit.
    """
    config: Any = parse(find(name).config_class(), settings)
    config.check(layout)
    return config
