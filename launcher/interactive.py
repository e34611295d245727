"""What client, supervisor, agents and ranks of an interactive gang call things by."""

WORKLOAD = "gang"  # what such a job has in the place of a workload's name
IDLE = "idle"  # phase of a rank that waits for a call
CALL = "call"  # first word of the phase of a rank that is in one
PIECE_BYTES = 4 * 2**20  # of what a call returns: the first comes with the answer, the others when they are asked for
END = "end"  # the message that ends a rank well
