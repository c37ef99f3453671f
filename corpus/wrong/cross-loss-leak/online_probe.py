"""The probe that watches the representation reads it with its graph, and so trains the encoder: the encoder's
gradients are off by 25 to 60%."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class MaskedAutoencoder(nn.Module):
    def __init__(self, n_patches=9, patch=4, width=24):
        super().__init__()
        self.embed = nn.Linear(patch, width)
        self.pos = nn.Parameter(0.02 * torch.randn(n_patches, width))
        self.mask_token = nn.Parameter(torch.zeros(width))
        self.mix = nn.TransformerEncoderLayer(width, 4, 48, dropout=0.0, batch_first=True)
        self.decode = nn.Linear(width, patch)

    def forward(self, patches, mask):
        tokens = torch.where(mask[..., None], self.mask_token, self.embed(patches)) + self.pos
        h = self.mix(tokens)
        return self.decode(h), h.mean(1)


class SelfSupervised(nn.Module):
    """Reconstruct the hidden patches; an online linear probe reports how useful the code is."""

    def __init__(self, n_classes):
        super().__init__()
        self.mae = MaskedAutoencoder()
        self.probe = nn.Linear(24, n_classes)

    def forward(self, patches, labels):
        mask = torch.rand(patches.shape[:2]) < 0.5
        recon, code = self.mae(patches, mask)
        ssl_loss = (recon - patches).pow(2).mean(-1)[mask].mean()
        logits = self.probe(code)  # expect: cross-loss-leak
        probe_loss = F.cross_entropy(logits, labels)
        accuracy = (logits.argmax(1) == labels).float().mean()
        return {"loss": ssl_loss + probe_loss, "ssl": ssl_loss.detach(), "probe_acc": accuracy}


def main():
    torch.manual_seed(88)
    labels = torch.randint(3, (160,))
    patches = torch.randn(3, 9, 4)[labels] + 0.8 * torch.randn(160, 9, 4)
    loader = DataLoader(TensorDataset(patches, labels), batch_size=32, shuffle=True)
    system = SelfSupervised(3)
    optimizer = torch.optim.AdamW(system.parameters(), lr=1e-3)
    for epoch in range(2):
        for batch in loader:
            out = system(*batch)
            optimizer.zero_grad()
            out["loss"].backward()
            optimizer.step()
        print(f"epoch {epoch} ssl {out['ssl']:.4f} probe accuracy {out['probe_acc']:.3f}")


if __name__ == "__main__":
    main()
