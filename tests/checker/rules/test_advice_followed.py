"""Advice that is no edit, followed by hand: the mistake is gone, nothing new is wrong, and training goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from corpus.scripts import FOLDER
from tests.test_scripts import CANCELS, STILL, parts, run

# A wrong script, what the advice says, and what a reader then changes.
FOLLOWED = {
    "amp-scaler-misuse/digits_mlp": (
        "Construct the scaler once, before the loop, and call scaler.update() after each scaler.step()",
        [
            (
                "        scaler = torch.amp",
                "        scaler = self.scaler if hasattr(self, 'scaler') else torch.amp",
            ),
            (
                "        scaler.step(self.optimizer)",
                "        scaler.step(self.optimizer)\n        scaler.update()",
            ),
            (
                "        loss = self.loss(x, y)\n",
                "        self.scaler = scaler\n        loss = self.loss(x, y)\n",
            ),
        ],
    ),
    "clip-misplaced/adding_rnn": (
        "Clip between backward() and optimizer.step()",
        [
            ("    nn.utils.clip_grad_norm_(model.parameters(), max_norm)", "    pass"),
            (
                "            optimizer.step()",
                "            nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n            "
                "optimizer.step()",
            ),
        ],
    ),
    "ineffective-step/bfloat16_sgd": (
        "Keep the parameters in float32 and run the forward pass under torch.autocast",
        [
            (".to(torch.bfloat16)", ""),
            (".bfloat16()", ""),
            (
                "    loss = nn.functional.cross_entropy(model(x)",
                "    with torch.autocast('cpu', dtype=torch.bfloat16):\n        out = model(x)\n"
                "    loss = nn.functional.cross_entropy(out",
            ),
        ],
    ),
    "inplace-param-update/ema_teacher": (
        "Move the average towards the trained values instead: average.lerp_(trained, 0.1)",
        [("p.mul_(1 - self.decay).add_(s, alpha=self.decay)", "s.lerp_(p, 0.1)")],
    ),
    "param-not-in-optimizer/new_tasks": (
        "optimizer.add_param_group({'params': ...})",
        [
            (
                "        self.model[name] = nn.Linear(self.hidden, n_classes)",
                "        self.model[name] = nn.Linear(self.hidden, n_classes)\n"
                "        self.optimizer.add_param_group({'params': self.model[name].parameters()})",
            )
        ],
    ),
    "stale-optimizer-params/unit_rows": (
        "write into the old parameter",
        [
            (
                "        self.W_dec = nn.Parameter(F.normalize(self.W_dec.data, dim=1))",
                "        with torch.no_grad():\n            self.W_dec.copy_(F.normalize(self.W_dec, dim=1))",
            )
        ],
    ),
    "param-in-multiple-optimizers/shared_trunk": (
        "Pass them to only one optimizer: remove them from critic_opt",
        [("itertools.chain(self.trunk.parameters(), self.critic.parameters())", "self.critic.parameters()")],
    ),
    "optimizer-state-reset/train_function": (
        "Construct it once, before the loop, and pass it in",
        [
            (
                "def train(model, train_loader, epoch, lr=2e-3):\n",
                "def train(model, optimizer, train_loader, epoch):\n",
            ),
            (
                "    optimizer = torch.optim.Adam(model.parameters(), lr=lr)  # expect: optimizer-state-reset\n",
                "",
            ),
            (
                "    model = Net()\n",
                "    model = Net()\n    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)\n",
            ),
            ("        train(model, train_loader", "        train(model, optimizer, train_loader"),
        ],
    ),
    "frozen-state-drift/two_stages": (
        "Set the gradients to None where the parameters are frozen",
        [("        p.requires_grad = flag", "        p.grad = None\n        p.requires_grad = flag")],
    ),
    "scheduler-cadence/exponential_unused": (
        "Call lr_scheduler.step() after the optimizer's step, or once an epoch if the schedule's length "
        "counts epochs",
        [('    print(f"epoch', '    lr_scheduler.step()\n    print(f"epoch')],
    ),
    "zero-gradient/lora_adapter": (
        "Initialize one of the factors with nonzero values",
        [("self.lora_a = nn.Parameter(torch.zeros(", "self.lora_a = nn.Parameter(0.1 * torch.ones(")],
    ),
    "broken-graph/sac_detached": (
        "Use the value itself instead of a detached copy",
        [("q(qf1, obs, pi.detach()), q(qf2, obs, pi.detach())", "q(qf1, obs, pi), q(qf2, obs, pi)")],
    ),
    "graph-retention/moving_center": (
        "Detach values that are carried over from step to step: self.state = new.detach()",
        [
            ("(retain_graph=True)", "()"),
            ("= self.momentum * self.center", "= self.momentum * self.center.detach()"),
        ],
    ),
    "microbatch-normalization/gpt_padding": (
        "Instead of dividing each mean by 4, multiply it by its number of items, (loss * items).backward(), "
        "and divide the gradients once, before any clipping, by the total of the window",
        [
            (
                "(loss / gradient_accumulation_steps).backward()",
                "(loss * (batch[:, 1:] != PAD).sum()).backward()",
            ),
            (
                "        running += loss",
                "        items = (it % 4 and items) + (batch[:, 1:] != PAD).sum()\n        running += loss",
            ),
            (
                "            torch.nn.utils.clip",
                "            for p in model.parameters():\n                p.grad /= items\n"
                "            torch.nn.utils.clip",
            ),
        ],
    ),
    "unreached-parameter/depth_head_only_logged": (
        "in the loss that is back-propagated",
        [("loss = 1.0 * parts[0]", "loss = parts[0] + parts[1]")],
    ),
    "zero-gradient/small_targets_float16": (
        "Or use torch.bfloat16 instead of torch.float16",
        [("torch.float16", "torch.bfloat16")],
    ),
    "term-left-out/l1_in_trainer": (
        "Add it to the loss, or compute it under torch.no_grad() if it is only displayed",
        [("loss = ce  #", "loss = ce + self.l1_lambda * l1  #")],
    ),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_a_reader_who_follows_the_advice_ends_with_a_right_script(name: str, tmp_path: Path) -> None:
    says, changes = FOLLOWED[name]
    wrong = FOLDER / "wrong" / f"{name}.py"
    category = name.partition("/")[0]
    before = run(wrong, watch=True)
    advice = [each.advice for each in before.findings if each.category == category]
    assert any(says in each for each in advice), advice
    text = wrong.read_text("utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    script = tmp_path / "train.py"
    script.write_text(text, "utf-8")
    after = run(script, watch=True)
    assert not after.exit_code
    assert [each for each in after.findings if each.severity != "info" or each.category == category] == []
    if category not in STILL:
        (moved, idle), (moved_after, idle_after) = parts(before.log), parts(after.log)
        assert after.log is not None
        known = {each.name for each in after.log.parameters.values()}  # a target network may go unwatched
        assert (moved & known) - moved_after <= CANCELS
        assert idle_after - idle <= CANCELS
