"""The workload `independent-chains`: MCMC chains that never talk to each other, spread over all devices of all hosts.

- `config`: parameters (imports no JAX)
- `models`: the posteriors by name
- `user_model`: a log density of the user's as one more
- `sampler`: one transition of one chain, by TFP's HMC or NUTS
- `program`: many transitions of one block of chains in one dispatch, compiled alike for every device
- `blocks`: which device runs which chains, and how their arrays come together again
- `history`: what the chains have produced so far, in host memory
- `sampling`: supplies the devices with work and takes their draws to host memory
- `job`: all of this on one rank, and the moments when the ranks meet
- `report`: metrics, warnings, files and plots
- `run`: all of it, from top to bottom
"""
