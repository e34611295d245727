"""Ends of a rank process that mean more than success or failure. Imports no JAX: a broken one must be reported."""

EXIT_PORT_LOST = 75  # EX_TEMPFAIL of sysexits.h: another process took the port; a new attempt takes a new one
EXIT_LEASE_LOST = 70  # EX_SOFTWARE: nobody held this process any more


class PortLostError(RuntimeError):
    """Another process took the port between its choice and its use; a new attempt takes a new one."""
