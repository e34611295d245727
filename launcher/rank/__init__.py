"""The process that holds JAX: one a host and attempt. Small, knows nothing of the driver, never imports Ray.

- `launcher.rank.template`: imports once; every rank is a fork of it
- `launcher.rank.main`: from assignment to result
- `launcher.rank.context`: what the workload receives
- `launcher.rank.control`: the descriptor to the agent, and the lease that ends this process
- `launcher.rank.rendezvous`: `jax.distributed.initialize`, without a race for the port
- `launcher.rank.agreement`: before the workload: same environment everywhere, and the program barrier
- `launcher.rank.compile_cache`: what this host has compiled before
- `launcher.rank.probe`: a short-lived process that counts the devices
"""
