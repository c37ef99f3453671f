"""Looks like a graph broken by argmin and detach: the quantised code passes its gradient straight through
to the encoder, the codebook has a loss of its own, and unused codes get a gradient of zero."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class VectorQuantizer(nn.Module):
    def __init__(self, num_embeddings=12, embedding_dim=4, beta=0.25):
        super().__init__()
        self.beta = beta
        self.embedding = nn.Embedding(num_embeddings, embedding_dim)
        self.embedding.weight.data.uniform_(-1 / num_embeddings, 1 / num_embeddings)

    def forward(self, z):
        z = z.permute(0, 2, 1).contiguous()
        flat = z.view(-1, z.shape[-1])
        d = flat.pow(2).sum(1, keepdim=True) + self.embedding.weight.pow(2).sum(1)
        d = d - 2 * flat @ self.embedding.weight.t()
        indices = torch.argmin(d, dim=1)
        z_q = self.embedding(indices).view(z.shape)
        loss = torch.mean((z_q - z.detach()) ** 2) + self.beta * torch.mean((z_q.detach() - z) ** 2)
        z_q = z + (z_q - z).detach()  # preserve gradients
        return z_q.permute(0, 2, 1), loss, indices


class VQVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv1d(1, 16, 4, 2, 1), nn.ReLU(), nn.Conv1d(16, 4, 4, 2, 1))
        self.quantize = VectorQuantizer()
        self.decoder = nn.Sequential(
            nn.ConvTranspose1d(4, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose1d(16, 1, 4, 2, 1)
        )

    def forward(self, x):
        z_q, vq_loss, indices = self.quantize(self.encoder(x))
        return self.decoder(z_q), vq_loss, indices


def main():
    torch.manual_seed(10)
    t = torch.linspace(0, 1, 32)
    x = torch.sign(torch.sin(6.28 * (t * (1 + 3 * torch.rand(96, 1)) + torch.rand(96, 1))))[:, None]
    model = VQVAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3, amsgrad=True)
    for epoch in range(3):
        for batch in x[torch.randperm(len(x))].split(24):
            optimizer.zero_grad()
            recon, vq_loss, indices = model(batch)
            recon_error = F.mse_loss(recon, batch)
            (recon_error + vq_loss).backward()
            optimizer.step()
        print(f"recon {recon_error.item():.4f} vq {vq_loss.item():.5f} codes used {indices.unique().numel()}")


main()
