"""What ranks have imported before they are forked (``processes.preload``)."""

import hypothesis  # noqa: F401
import pytest  # noqa: F401
import sklearn.datasets  # type: ignore[import-untyped]  # noqa: F401
import torch._dynamo
import torch.distributed.checkpoint
import torch.distributed.fsdp  # noqa: F401

import gradgate.accumulation
import gradgate.checker.recording
import gradgate.checker.reports
import gradgate.checker.rules
import gradgate.planning  # noqa: F401
