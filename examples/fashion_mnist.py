"""A small ResNet on Fashion-MNIST: more than 93 % of the test images right, in minutes on two cores.

python examples/fetch.py fashion-mnist
python examples/fashion_mnist.py
"""

import numpy as np

import lezero as lz
from common import Mistake, arguments, find, fit, low_type, positive, start, whole
from lezero import nn, optim
from lezero.data import DataLoader, Dataset, TensorDataset
from lezero.data.datasets import FashionMNIST
from lezero.data.randomness import batch_generator
from lezero.nn import functional as F
from lezero.trainer import Trainer

MEAN, STD = 0.286, 0.353  # of the training images


class Block(nn.Module):
    """Two 3×3 convolutions and the residual connection around them (He et al. 2015)."""

    def __init__(self, channels: int, out: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


def network(width: int) -> nn.Module:
    """A block for 28², 14², 7² and 4² pixels, with more channels the fewer pixels: (count, 1, 28, 28) -> (count, 10)."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        Block(width, width, 1),
        Block(width, 3 * width, 2),
        Block(3 * width, 6 * width, 2),
        Block(6 * width, 12 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12 * width, 10),
    )


class Mirrored(Dataset):
    """Images and labels; half of the images are mirrored, others each time.  A whole batch is made at once."""

    def __init__(self, images: np.ndarray, labels: np.ndarray):
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def gather(self, indices):
        batch = self.images[indices]
        mirror = batch_generator().random(len(batch)) < 0.5
        batch[mirror] = batch[mirror, ..., ::-1]
        return batch, self.labels[indices]


def main() -> None:
    p = arguments(__doc__, epochs=6, batch_size=128, data="fashion-mnist")
    p.add_argument("--width", type=whole(), default=16, help="channels of the first block [16]")
    p.add_argument("--lr", type=positive, default=0.1, help="highest learning rate [0.1]")
    args = p.parse_args()
    path = find(args.data, "train-images-idx3-ubyte*", "fashion-mnist")[0].parent
    training, test = FashionMNIST(path), FashionMNIST(path, train=False)

    lz.manual_seed(args.seed)
    images, labels = training.arrays()
    train_set = Mirrored((images - MEAN) / STD, labels)
    loader = DataLoader(train_set, args.batch_size, shuffle=True, drop_last=True)
    if not len(loader):
        raise Mistake(f"--batch-size: there are only {len(train_set):,} images")
    images, labels = test.arrays()
    test_loader = DataLoader(TensorDataset((images - MEAN) / STD, labels), 500)

    model = network(args.width)
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True, weight_decay=5e-4)
    scheduler = optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=args.epochs * len(loader), pct_start=0.25)
    trainer = Trainer(
        model, optimizer, F.cross_entropy,
        metrics=["accuracy"], scheduler=scheduler, schedule_per="step", autocast=low_type(args),
    )  # fmt: skip
    history = fit(trainer, loader, test_loader, args)
    print(f"{100 * history[-1]['val_accuracy']:.2f} % of the {len(test):,} test images are right")


if __name__ == "__main__":
    start(main)
