"""What of checkpoints lies on disks. Imports no JAX: the head keeps checkpoints too, and holds no device.

`folders` names and finds steps, `manifest` says what a step must hold, `commit` begins a step and makes it count,
`merge` joins what several hosts have written. Where a rank reads and writes: `stores`.
"""
