"""The command line. Imports none of ray, jax, tfp, flax for `--help`, for config errors, or to read a job's record."""

import difflib
import importlib
import signal
import sys

import click

from cluster.errors import ClusterConfigError, ClusterError
from launcher.errors import FailureError, UserError

# Where each command lives; its module is imported when it is used.
COMMANDS = {
    "up": "launcher.cli.clusters",
    "down": "launcher.cli.clusters",
    "status": "launcher.cli.status",
    "list": "launcher.cli.listing",
    "submit": "launcher.cli.submit",
    "run": "launcher.cli.run",
    "exec": "launcher.cli.exec",
    "jobs": "launcher.cli.jobs",
    "logs": "launcher.cli.logs",
    "stacks": "launcher.cli.stacks",
    "profile": "launcher.cli.profile",
    "results": "launcher.cli.results",
    "cancel": "launcher.cli.jobs",
    "workloads": "launcher.cli.workloads",
    "accelerators": "launcher.cli.accelerators",
    "new": "launcher.cli.new",
    "doctor": "launcher.cli.doctor",
    "demo": "launcher.cli.demo",
}
FUNCTIONS = {"exec": "execute", "list": "list_clusters"}  # where the command's name means something else in Python


class LazyGroup(click.Group):
    """A group whose commands are imported on use, in the order of `COMMANDS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name])
        command: click.Command = getattr(module, FUNCTIONS.get(cmd_name, cmd_name))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise UserError(f"no command {args[0]!r}{hint} (commands: {', '.join(COMMANDS)})")
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="spmd-launch")
def cli() -> None:
    """Bring up a cluster of TPU, GPU or emulated CPU hosts and run one JAX program on all of them."""


def main() -> None:
    """Entry point: exit code 0, 1 for a failure, 2 for a mistake to correct, 130 when interrupted."""
    # A SIGTERM is an interrupt like Ctrl-C: what is half made is undone on the way out.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = cli(standalone_mode=False)
    except (UserError, FailureError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except ClusterConfigError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(UserError.exit_code)
    except ClusterError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(FailureError.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)
