"""A decoder-only character transformer, trained on a mesh of data and model axes.

- `config`: every parameter, and what fits a layout (imports no JAX)
- `corpus`: the default text, written where the job is submitted (imports no JAX)
- `data`: vocabulary, split, and batches that are a pure function of (seed, step)
- `model`: the network in flax NNX; `dense`: its products; `loss`: cross entropy, z-loss and accuracy
- `partition`: which axis of the mesh each array is split over; `reduce`: sums over the data axis in a fixed order
- `train`: state, optimizer and the functions that are compiled; `loop`: the host's side of them
- `run`: the workload, top to bottom; `sample`: text from the model; `outputs`: curves, plots, the memory table
"""
