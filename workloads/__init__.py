"""Workloads: SPMD programs in JAX that know nothing of how their hosts came to be.

- `workloads.registry`: every workload by name, its config class and where its `run` lives (imports no JAX)
- `workloads.params`: typed parameters: declaration, parsing of `key=value`, nearest-match hints (imports no JAX)
- `workloads.layout`: hosts x devices, and mesh shapes that fit them (imports no JAX)
- `workloads.context`: the small frozen object that `run(config, context)` receives
- `workloads.result`: what `run` returns
- `workloads.spmd`: tools for JAX programs of your own, with the launcher or without
"""
