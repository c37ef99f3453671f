"""SIGINT and SIGTERM wait for the end of what must not stop half-way, and then arrive."""

import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from gradgate import signals
from gradgate.signals import uninterrupted
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


# -- two signals, at any two places ------------------------------------------------------------------------


class Signals:
    """Sends a real signal at one bytecode of the traced code, and a second one at a later call or return.

    An exception out of a trace function ends the tracing, so that the second place is found by profiling. CPython
    runs handlers at calls, returns and jumps, of which these are all that matter.
    """

    def __init__(self, first: int, second: int | None, numbers: tuple[int, int]) -> None:
        self.first, self.second, self.numbers = first, second, numbers
        self.opcodes = self.events = 0

    def trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename != signals.__file__:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            self.opcodes += 1
            if self.opcodes == self.first:
                if self.second is not None:
                    sys.setprofile(self.profile)
                signal.raise_signal(self.numbers[0])
        return self.trace

    def profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if frame.f_code.co_filename == signals.__file__:
            self.events += 1
            if self.events == self.second:
                sys.setprofile(None)
                signal.raise_signal(self.numbers[1])


def handlers_after(signals: Signals) -> list[Any]:
    """Run the block under two handlers that raise; return those that are installed afterwards."""

    def terminated(*_: Any) -> None:
        raise StopError

    usual = [
        signal.signal(signal.SIGTERM, terminated),
        signal.signal(signal.SIGINT, signal.default_int_handler),
    ]
    tracing, profiling = sys.gettrace(), sys.getprofile()
    try:
        try:
            sys.settrace(signals.trace)
            with uninterrupted():
                pass
        except (StopError, KeyboardInterrupt):
            pass
        finally:
            sys.settrace(tracing)
            sys.setprofile(profiling)
        return [
            (signal.getsignal(signal.SIGTERM) is terminated),
            (signal.getsignal(signal.SIGINT) is signal.default_int_handler),
        ]
    finally:
        signal.signal(signal.SIGTERM, usual[0])
        signal.signal(signal.SIGINT, usual[1])


@pytest.mark.parametrize(
    ("first", "second"),
    [(signal.SIGINT, None), (signal.SIGINT, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT)],
)
def test_handlers_are_given_back_whenever_two_signals_arrive(first: int, second: int | None) -> None:
    counted = Signals(0, None, (first, first))
    handlers_after(counted)
    assert counted.opcodes > 50
    left = []
    for place in range(1, counted.opcodes + 1):
        for event in range(1, 100) if second else [None]:
            signals = Signals(place, event, (first, second or first))
            if not all(handlers_after(signals)):
                left.append((place, event))
            if event is None or signals.events < event:
                break
    assert left == []
