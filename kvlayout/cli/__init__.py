"""The command line: one file per command.

Every command imports what it needs inside its function, so that `kvlayout --help` stays fast. Exit codes: 0 all proved,
1 findings, 2 wrong usage, unreadable input or nothing to do, 101 a fault of ours; no traceback reaches a user.
"""

from __future__ import annotations

import os
import signal

import click

from kvlayout import __version__
from kvlayout.cli.bench import bench_command
from kvlayout.cli.compare import compare_command
from kvlayout.cli.compile import compile_command
from kvlayout.cli.explain import explain_command
from kvlayout.cli.init import init_command
from kvlayout.cli.plan import plan_command
from kvlayout.cli.schema import schema_command
from kvlayout.cli.show import show_command
from kvlayout.cli.verify import verify_command

__all__ = ["cli", "main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="kvlayout")
def cli() -> None:
    """Declare how engines lay out KV cache and state pages; get transfer plans that are proved correct.

    An ENGINE is a YAML file, or words as tp=4,order=NHD,block=64,attention.scale_layout=sm100: tp pp dcp pcp (1),
    interleave (1), stages, block (16), kernel_block, order (LBHNC or HND, LBNHC or NHD), conv (DS, SD), spec_tokens
    (0), page, family (plain), kv_dtype (auto); GROUP.KEY=VALUE overrides one group.

    Exit codes: 0 all proved; 1 findings, or a refused plan; 2 wrong usage, unreadable input or nothing to do; 101 a
    fault of kvlayout itself.
    """


COMMANDS = (
    verify_command, plan_command, compare_command, compile_command, show_command, init_command, explain_command,
    schema_command, bench_command,
)  # fmt: skip
for command in COMMANDS:
    cli.add_command(command)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    from kvlayout.errors import KvLayoutError

    if arguments is None and hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `kvlayout show ... | head` ends quietly, as other tools do
    try:
        return cli.main(args=arguments, prog_name="kvlayout", standalone_mode=False) or 0
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.ClickException as error:
        error.show()
        return 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except KvLayoutError as error:
        from kvlayout.cli.output import print_problems

        print_problems(error.problems)
        return 2
    except OSError as error:
        click.echo(f"error: {error.strerror or error}: {error.filename or ''}".rstrip(": "), err=True)
        return 2
    except Exception as error:
        return _our_fault(error)


def _our_fault(error: Exception) -> int:
    if os.environ.get("KVLAYOUT_TRACEBACK"):
        import traceback

        traceback.print_exc()
    click.echo(
        f"a fault of kvlayout itself, not of your input: {type(error).__name__}: {error}\n"
        "Please report it with the command line and the spec; KVLAYOUT_TRACEBACK=1 shows where it happened.",
        err=True,
    )
    return 101
