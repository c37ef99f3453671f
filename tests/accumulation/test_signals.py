"""SIGINT and SIGTERM wait for the end of what must not stop half-way, and then arrive."""

import signal
import threading
from collections.abc import Iterator

import pytest

from gradgate.accumulation._signals import uninterrupted
from tests.accumulation.one_weight import StopError, stopped_by


@pytest.fixture
def received() -> Iterator[list[int]]:
    """What handlers of both signals received."""
    numbers: list[int] = []
    usual = {
        number: signal.signal(number, lambda got, _: numbers.append(got))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    yield numbers
    for number, handler in usual.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_arrives_after_the_block_once(received: list[int], number: signal.Signals) -> None:
    handler = signal.getsignal(number)
    with uninterrupted():
        signal.raise_signal(number)
        assert received == []
    assert received == [number]
    assert signal.getsignal(number) is handler


def test_signals_arrive_in_their_order(received: list[int]) -> None:
    with uninterrupted():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            signal.raise_signal(number)
    assert received == [signal.SIGTERM, signal.SIGINT, signal.SIGTERM]


def test_a_handler_that_raises_does_not_lose_the_other_signal(received: list[int]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with stopped_by(KeyboardInterrupt), uninterrupted():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert received == [signal.SIGTERM]


def test_a_signal_arrives_also_if_the_block_raises(received: list[int]) -> None:
    with stopped_by(StopError), uninterrupted():
        signal.raise_signal(signal.SIGTERM)
        raise StopError
    assert received == [signal.SIGTERM]


def test_blocks_can_be_nested(received: list[int]) -> None:
    with uninterrupted():
        with uninterrupted():
            signal.raise_signal(signal.SIGTERM)
        assert received == []
    assert received == [signal.SIGTERM]


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    usual = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with uninterrupted():
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, usual)


def test_other_threads_have_nothing_to_hold_back() -> None:
    seen = []

    def work() -> None:
        with uninterrupted():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]
