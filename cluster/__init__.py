"""Clusters: from a cluster file to hosts that are Ray nodes. Knows Ray, never JAX.

- `cluster.spec`, `cluster.config_file`: what is asked for, and the YAML file that says it
- `cluster.provider`: the small interface behind which hosts are made; `cluster.local` is the first of them
- `cluster.ray_provider`: nodes of a Ray that runs already; `cluster.on_ray` is its process that joins it
- `cluster.record`: what exists, as written in the state folder
- `cluster.holder`: the process that owns the nodes of a local cluster
- `cluster.processes`: processes named by pid and start time, so that a reused pid is never ended
"""
