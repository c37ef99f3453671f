"""What holds for the tests: the same examples in every run, and no GPU is asked for."""

import os
import signal
from collections.abc import Iterator

import pytest

# private: a mode that stays on the stack would be seen by the next test
from gradgate.checker.recording._values import ValueGraph
from gradgate.torch_compat import top_function_mode

# A shell that starts the suite in the background has it ignore interrupts, which some tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)  # after torch is imported
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("dist", "no") != "no":
        return  # others run the tests
    from hypothesis import register_random, settings

    register_random(TORCH_RANDOM)
    # A fixed search, so that the suite says the same of the same code everywhere. No deadline: the first call
    # of an operator in torch takes many times as long as the second.
    settings.register_profile("suite", derandomize=True, deadline=None)
    settings.register_profile("explore", derandomize=False, deadline=None, max_examples=2000)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))


class TorchRandom:
    """Torch's generator, in the form in which Hypothesis resets it before every example."""

    def seed(self, number: int) -> None:
        import torch

        torch.manual_seed(number)

    def getstate(self) -> object:
        import torch

        return torch.get_rng_state()

    def setstate(self, state: object) -> None:
        import torch

        torch.set_rng_state(state)


TORCH_RANDOM = TorchRandom()  # Hypothesis holds it weakly


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def no_mode_is_left() -> Iterator[None]:
    """Take off the modes of watchers that a script's own mode, put on later, has kept on the stack."""
    yield
    while type(top := top_function_mode.use()) is ValueGraph:
        top.__exit__(None, None, None)
