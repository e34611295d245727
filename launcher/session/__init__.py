"""The Python session: jobs and interactive gangs of a cluster that is up, from a script or a notebook.

- `clusters.connect`, `clusters.ClusterSession`: a cluster
- `jobs.Job`, `jobs.JobResult`: a job on it
- `gangs.Gang`: processes that stay up between calls; `handles.Handle`: an array that they hold
- `errors.GangError`, `errors.GangEndedError`: what a call may raise
"""
