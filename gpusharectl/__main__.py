"""``gpusharectl``: the entry point of the program, under all its names."""

from gpushare import interrupt


def run() -> None:
    """Run the command line. Ctrl-C never shows a traceback, from here on."""
    interrupt.end_at_once()
    # Not at the top: Ctrl-C is likely while it is imported.
    from gpusharectl.commands import main  # noqa: PLC0415

    main.run()


if __name__ == "__main__":
    run()
