"""Runs at the start of every Python interpreter that a watched script starts. See ``checker/running``."""


def _prepare() -> None:
    """Prepare to watch, but import nothing in an interpreter that only serves other processes."""
    import os
    import sys

    words = " ".join(getattr(sys, "orig_argv", ()))
    helpers = ("multiprocessing.resource_tracker", "torch._inductor", "torch/_inductor")
    if "GRADGATE_RUN" not in os.environ or any(helper in words for helper in helpers):
        return
    try:
        from gradgate.checker.running import prepare_child
    except ImportError:
        return  # this interpreter has no gradgate
    # With "--multiprocessing-fork", the interpreter becomes a process of multiprocessing. A forkserver forks some.
    prepare_child(
        of_multiprocessing="--multiprocessing-fork" in words or "multiprocessing.forkserver" in words
    )


def _chain() -> None:
    """Run the ``sitecustomize`` that this file hides, if there is one."""
    import os
    import sys
    from importlib.machinery import PathFinder

    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  (importing pathlib is slow)
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        hidden = module_from_spec(spec)
        sys.modules["sitecustomize"] = hidden
        spec.loader.exec_module(hidden)


_prepare()
_chain()
