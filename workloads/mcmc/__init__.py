"""What the MCMC workloads share, with draws as plain NumPy arrays: nothing here knows a sampler or a device.

- `workloads.mcmc.diagnostics`: R-hat, effective sample sizes and divergences, as numbers and as warnings in words
- `workloads.mcmc.dataset`: draws as an ArviZ-compatible netCDF file
- `workloads.mcmc.plots`: log density, trace, rank and scatter plots as PNG
"""
