"""MCMC over data, and over state, that is sharded across all devices of all hosts.

- `config`: parameters (imports no JAX)
- `run`: the workload, top to bottom
- `model`: what a model is to the sampler; `logistic` and `matrix_factorization` are the two there are
- `datasets`: labelled images and synthetic watch matrices; `placement`: rows onto devices, padded, never dropped
- `sampler`: one HMC transition with dual averaging; `program`: many of them in one dispatch
- `history`: draws and traces on the host; `report`: the posterior as files, plots and metrics
"""
