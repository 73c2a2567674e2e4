"""``python -m exporter``."""

from gpushare import interrupt


def run() -> None:
    """Run the command line. Ctrl-C never shows a traceback, from here on."""
    interrupt.end_at_once()
    # Not at the top: Ctrl-C is likely while it is imported.
    from exporter.command import main  # noqa: PLC0415

    main()


if __name__ == "__main__":
    run()
