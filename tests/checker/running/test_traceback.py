import traceback
from collections.abc import Callable

import pytest

# private: frames of the package are removed from a traceback, and no others
from gradgate.checker.running import _script
from gradgate.checker.running._script import drop_own_frames, led_to


def own_function() -> Callable[[Callable[[], None]], None]:
    """Return a function that calls what it is given, from a file of the package."""
    space: dict[str, Callable[[Callable[[], None]], None]] = {}
    exec(compile("def pass_on(act): act()", _script.__file__, "exec"), space)
    return space["pass_on"]


def test_own_frames_are_removed_wherever_they_are() -> None:
    pass_on = own_function()

    def user() -> None:
        raise ValueError("inner")

    def outer() -> None:
        try:
            pass_on(user)
        except ValueError as error:
            raise KeyError("outer") from error

    with pytest.raises(KeyError) as caught:
        pass_on(outer)
    assert "in pass_on" in "".join(traceback.format_exception(caught.value))
    drop_own_frames(caught.value)
    text = "".join(traceback.format_exception(caught.value))
    assert "in pass_on" not in text
    assert (text.count("in user"), text.count("in outer")) == (1, 2)
    assert [type(each) for each in led_to(caught.value)] == [KeyError, ValueError]


def test_an_error_without_a_frame_of_its_own_is_left_without_one() -> None:
    with pytest.raises(SyntaxError) as caught:
        own_function()(lambda: compile("x = (", "x.py", "exec"))  # type: ignore[arg-type, return-value]
    error = caught.value
    trace = error.__traceback__
    assert trace is not None
    error.__traceback__ = trace.tb_next  # this file's own frame
    assert error.__traceback__ is not None
    error.__traceback__.tb_next = None  # and that of the lambda
    drop_own_frames(error)
    assert error.__traceback__ is None
