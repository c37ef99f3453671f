"""The feature extractor of the perceptual loss keeps requires_grad, so each backward pass computes gradients for its weights that no optimizer uses."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


class FeatureExtractor(nn.Module):
    """Stand-in for the first layers of a pretrained VGG."""

    def __init__(self):
        super().__init__()
        self.slice1 = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.LeakyReLU(0.1))
        self.slice2 = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(8, 12, 3, padding=1), nn.LeakyReLU(0.1))

    def forward(self, x):
        a = self.slice1(x)
        return [a, self.slice2(a)]


def load_vgg():
    torch.manual_seed(2024)
    return FeatureExtractor()


class PerceptualLoss(nn.Module):
    def __init__(self, weights=(1.0, 0.5)):
        super().__init__()
        self.vgg = load_vgg().eval()  # expect: wasted-gradient
        self.weights = weights

    def forward(self, output, target):
        with torch.no_grad():
            reference = self.vgg(target)
        features = self.vgg(output)
        return sum(w * F.l1_loss(f, r) for w, f, r in zip(self.weights, features, reference))


class SuperResolver(nn.Module):
    def __init__(self, channels=8):
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, 4, 3, padding=1)
        self.shuffle = nn.PixelShuffle(2)

    def forward(self, low):
        detail = self.shuffle(self.conv2(F.leaky_relu(self.conv1(low), 0.1)))
        return detail + F.interpolate(low, scale_factor=2, mode="bilinear", align_corners=False)


def textures(n, size=16):
    axis = torch.linspace(0, 1, size)
    fx, fy = 2 + 6 * torch.rand(2, n, 1, 1)
    high = torch.sin(6.28 * (fx * axis.view(1, 1, -1) + fy * axis.view(1, -1, 1))).unsqueeze(1)
    return F.avg_pool2d(high, 2), high


def psnr(model, low, high):
    model.eval()
    with torch.no_grad():
        mse = F.mse_loss(model(low), high)
    model.train()
    return (10 * torch.log10(4.0 / mse)).item()


def main():
    perceptual = PerceptualLoss()
    torch.manual_seed(68)
    model = SuperResolver()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    low, high = textures(96)
    val = textures(24)
    for epoch in range(2):
        total = 0.0
        for idx in torch.randperm(len(low)).split(16):
            output = model(low[idx])
            loss = F.mse_loss(output, high[idx]) + 0.2 * perceptual(output, high[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / 6:.4f} psnr {psnr(model, *val):.2f} dB")


if __name__ == "__main__":
    main()
