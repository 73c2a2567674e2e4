"""Times of a scenario, read and written."""

from gpusharectl.simulator.scenario import format_duration, parse_seconds

TIMES = {"0": 0, "90": 90, "1h30m": 5400, "2d": 172800, "1.5h": 5400}
NO_TIMES = dict.fromkeys(("", "h", "-1", "1x", "1h 2m", "1h30", "30 1h", "nan"))


def test_times_are_read_and_written() -> None:
    assert {text: parse_seconds(text) for text in TIMES} == TIMES
    assert {text: parse_seconds(text) for text in NO_TIMES} == NO_TIMES
    told = [
        format_duration(length)
        for length in (0.0001, 0.2, 0.9996, 59, 60, 90000, 86400)
    ]
    assert told == ["0 s", "200 ms", "1 s", "59 s", "1 min", "1 d 1 h", "1 d"]
