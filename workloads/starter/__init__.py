"""What `spmd-launch new` writes: a small workload and its test, as they stand here, under another name."""
