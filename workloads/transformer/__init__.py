"""A decoder-only character transformer, trained on a mesh of data and model axes.

- `config`: every parameter, and what fits a layout (imports no JAX)
- `corpus`: the default text, written where the job is submitted (imports no JAX)
- `data`: vocabulary, split, and batches that are a pure function of (seed, step)
- `model`: the network in flax NNX; `loss`: cross entropy, z-loss and accuracy over a sharded vocabulary
- `partition`: which axis of the mesh each array is split over
- `train`: state, optimizer and the compiled programs; `sample`: text from the model
- `run`: the workload, top to bottom; `outputs`: curves, plots and the memory table
"""
