"""The two kinds of error that reach a person: a mistake to correct (exit code 2), and a failure (exit code 1)."""


class UserError(Exception):
    """A mistake in a command, a file or a value; nothing has been started. One line, with what to do."""

    exit_code = 2


class FailureError(Exception):
    """Something that should have worked did not. Says what, on which host and rank, and what to do."""

    exit_code = 1


class NoAnswerError(FailureError):
    """A cluster's supervisor does not answer, or its answer breaks off: it may have ended, and be started again."""
