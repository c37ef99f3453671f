"""DeepSpeed's engine, without and with its optimizer for bf16."""

import os

import torch

from ._task import Task, Way

ALONE = {"MASTER_ADDR": "localhost", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
os.environ |= {"DS_ACCELERATOR": "cpu", "MASTER_PORT": os.environ.get("MASTER_PORT", "29517"), **ALONE}

import deepspeed  # noqa: E402  (it reads the environment)

WIDE_SUMS = {"data_types": {"grad_accum_dtype": "fp32"}, "zero_optimization": {"stage": 1}}


def train(task: Task, **options) -> None:
    config = {
        "train_micro_batch_size_per_gpu": max(task.sizes),
        "gradient_accumulation_steps": task.window,
        "bf16": {"enabled": next(task.model.parameters()).dtype == torch.bfloat16},
        "gradient_clipping": 0.0,  # it clips to norm 1 unless told otherwise
        "zero_allow_untested_optimizer": True,  # SGD
        **options,
    }
    deepspeed.init_distributed("gloo")
    engine, *_ = deepspeed.initialize(model=task.model, optimizer=task.optimizer, config=config)
    for _ in range(task.epochs):
        for x, y in task.loader():
            engine.backward(task.loss(engine(x), y))
            engine.step()


def train_wide(task: Task) -> None:
    train(task, **WIDE_SUMS)


WAYS = (Way(train), Way(train_wide, ("bf16",), "grad_accum_dtype fp32 with ZeRO 1"))
DTYPE = torch.float32  # it refuses to reduce float64 gradients
