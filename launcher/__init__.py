"""The launcher: ties clusters and workloads together.

The way of a job: `launcher.cli` -> `launcher.client` -> `launcher.supervisor` (one actor a cluster) -> `launcher.agent`
(one actor a host) -> `launcher.rank` (one process a host and attempt, which never imports Ray) -> a workload's `run`.
"""
