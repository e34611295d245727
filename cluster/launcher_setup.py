"""The commands of a launcher's file, run on a machine that it describes."""

from collections.abc import Sequence

from cluster.ssh import Ssh, SshError

TIMEOUT_S = 1800.0


def run_all(ssh: Ssh, commands: Sequence[str]) -> None:
    """In a login shell, as Ray does; the commands go over the connection, and read nothing.

    Raises:
        SshError: which has failed, with its last lines.
    """
    for number, command in enumerate(commands, 1):  # which may hold a token
        try:
            ssh.run(["bash", "--login", "-c", 'eval "$(cat)"'], command.encode(), TIMEOUT_S)
        except SshError as error:
            raise SshError(f"setup command {number} of {len(commands)} failed\n{error}") from error
