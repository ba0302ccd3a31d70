"""The command line: parse, build a spec, call one function, print.

A user's mistake costs one line on standard error and exit status 2. Ctrl-C, SIGTERM and SIGHUP stop
everything that the command started; it exits with status 130, 143 or 129. While Python still
imports the commands, these signals end the process at once. A command imports its libraries only
when it runs, so help and mistakes get an instant answer. This module imports no other module of
Downpour.
"""

import signal
import sys
from collections.abc import Sequence


def main() -> None:
    """Run the command line and exit with its status."""
    # pip refuses older versions; this is for users who start a clone without it.
    if sys.version_info < (3, 11):  # noqa: UP036
        found = ".".join(str(part) for part in sys.version_info[:2])
        sys.exit(f"downpour: needs Python 3.11 or newer, and this is {found}")
    # A parent may ignore Ctrl-C (nohup, a shell's background job); then we ignore it too.
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heard:  # an interrupted import leaves half a module and prints a traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from downpour.cli import printing

    printing.prepare()
    status = run_command(sys.argv[1:], interruptible=heard)
    if heard:  # a late Ctrl-C must not add a traceback after the command ended
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    printing.abandon_broken()
    sys.exit(status)


def run_command(words: Sequence[str], *, interruptible: bool | None = None) -> int:
    """Run one command and return its exit status; print errors in one line.

    With `interruptible`, Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt once the commands are
    imported. None leaves all handlers alone, because the process belongs to someone else.
    """
    from downpour.cli.commands import command_line
    from downpour.cli.printing import final_status, report_error
    from downpour.host.process import stop_at_signals

    try:
        if interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if interruptible is not None:
            stop_at_signals()
        status = command_line(words)(list(words), prog_name="downpour", standalone_mode=False)
        sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001 - the edge of the program
        return report_error(error)
    return final_status(int(status or 0))
