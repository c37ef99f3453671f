"""A fit of a Michaelis-Menten curve: the optimizer gets the measured concentrations and rates instead of v_max and
k_m, so the data move until they lie on the curve of the first guess."""

import numpy as np
import torch

rng = np.random.default_rng(5)
conc = rng.uniform(0.1, 4.0, size=60)
rate = 1.8 * conc / (0.7 + conc) + 0.03 * rng.standard_normal(60)


class Kinetics:
    def __init__(self, conc, rate, lr=0.05):
        self.conc = torch.from_numpy(conc).float().requires_grad_()
        self.rate = torch.from_numpy(rate).float().requires_grad_()
        self.v_max = torch.tensor(1.0, requires_grad=True)
        self.k_m = torch.tensor(1.0, requires_grad=True)
        self.optimizer = torch.optim.SGD([self.conc, self.rate], lr=lr)  # expect: param-not-in-optimizer

    def fit(self, steps):
        for _ in range(steps):
            self.optimizer.zero_grad()
            predicted = self.v_max * self.conc / (self.k_m + self.conc)
            loss = torch.nn.functional.mse_loss(predicted, self.rate)
            loss.backward()
            self.optimizer.step()
        return loss.item()


kinetics = Kinetics(conc, rate)
print(f"{kinetics.fit(40):.4f}", round(kinetics.v_max.item(), 3), round(kinetics.k_m.item(), 3))
