"""Do all ranks run the same thing? Asked before an answer is accepted, answered on every rank, without collectives.

- `environment`: versions, code, config, flags and devices, right after the rendezvous
- `programs`: what is compiled for several processes, before it is compiled
- `input_data`: what each rank has read by itself, before anything is made of it
- `launches`: the order in which such programs are launched; `program` is what records it
- `user_launches`: the same for code that does not launch through the context, where JAX lets it be seen
- `launch_order`, `majority`, `text_difference`: the comparisons, pure or nearly so
- `faults`: ways to make one rank go astray, for tests and for `--inject`

Nothing is re-exported: the supervisor imports `launch_order` and must not import JAX.
"""
