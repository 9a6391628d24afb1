"""MobileNetV2's published weights on photographs, and taught ten new classes with a few images of each.

    python examples/fetch.py mobilenet photos fashion-mnist
    python examples/transfer.py

First the network says what is on 20 photographs, as it was trained to.  Then it gets a new classifier for ten kinds of
clothing and 200 images of each kind: at first only the classifier learns, from features computed once; then everything does,
at a small learning rate.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np

import lezero as lz
from common import HOME, Mistake, arguments, find, low_type, positive, start, whole
from lezero import models, nn, optim
from lezero.data import DataLoader, Dataset, TensorDataset
from lezero.data.datasets import FashionMNIST
from lezero.data.randomness import batch_generator
from lezero.io import load_pth
from lezero.nn import functional as F
from lezero.trainer import Trainer

MEAN = np.array([0.485, 0.456, 0.406], np.float32)[:, None, None]  # of ImageNet's pixels
STD = np.array([0.229, 0.224, 0.225], np.float32)[:, None, None]


def mobilenet(path: Path) -> models.MobileNetV2:
    model = models.mobilenet_v2()
    model.load_state_dict(load_pth(find(path, "mobilenet_v2*.pth", "mobilenet", "--model")[0]))
    return model


def photograph(path: Path) -> np.ndarray:
    """The middle 224 pixels of a picture with its shorter side at 256, as the network was trained on."""
    from PIL import Image

    image = Image.open(path).convert("RGB")
    width, height = (round(n * 256 / min(image.size)) for n in image.size)
    left, top = (width - 224) // 2, (height - 224) // 2
    image = image.resize((width, height), Image.Resampling.BILINEAR).crop((left, top, left + 224, top + 224))
    return (np.asarray(image, np.float32).transpose(2, 0, 1) / 255 - MEAN) / STD


def recognise(model: nn.Module, folder: Path) -> None:
    """Print on how many of the photographs under `folder` the network finds what their names say."""
    try:
        import PIL  # noqa: F401
    except ImportError:
        print("the photographs are left out: Pillow is not installed (pip install pillow)")
        return
    paths = find(folder, "imagenet_*.jpg", "photos", "--photos")
    classes = np.array([int(re.search(r"(\d+)$", path.stem)[1]) for path in paths])
    model.eval()
    with lz.no_grad():
        scores = model(lz.tensor(np.stack([photograph(path) for path in paths]))).numpy()
    best = np.argsort(-scores, 1)
    first, five = (best[:, 0] == classes).sum(), (best[:, :5] == classes[:, None]).any(1).sum()
    print(f"{first} of {len(paths)} photographs are right, {five} among the first five guesses")


class Enlarged(Dataset):
    """Small grey images as the network wants them: enlarged, in three equal colours, and mirrored by chance if `mirror`."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, size: int, mirror: bool):
        self.images, self.labels, self.size, self.mirror = images, labels, size, mirror

    def __len__(self) -> int:
        return len(self.labels)

    def gather(self, indices):
        images = self.images[indices].astype(np.float32) / 255
        if self.mirror:
            flipped = batch_generator().random(len(images)) < 0.5
            images[flipped] = images[flipped, :, ::-1]
        with lz.no_grad():
            large = F.interpolate(lz.tensor(images[:, None]), size=self.size, mode="bilinear", align_corners=False)
        return (large.numpy() - MEAN) / STD, self.labels[indices]


def few(data: FashionMNIST, each: int) -> tuple[np.ndarray, np.ndarray]:
    """The first `each` images of every class."""
    chosen = np.concatenate([np.flatnonzero(data.labels == c)[:each] for c in range(len(data.classes))])
    return data.images[chosen], data.labels[chosen]


def features_of(model: models.MobileNetV2, data: Dataset) -> TensorDataset:
    """What the network sees in each image, before its classifier: (count, 1280), with the labels."""
    model.eval()
    with lz.no_grad():
        seen = [model.features(x).mean((2, 3)).numpy() for x, _ in DataLoader(data, 100)]
    return TensorDataset(np.concatenate(seen), data.labels)


def train(model, training, test, lr: float, epochs: int, args) -> float:
    """Train what requires a gradient; the share of the test images that are right after it."""
    loader = DataLoader(training, args.batch_size, shuffle=True, drop_last=True)
    if not len(loader):
        raise Mistake(f"--batch-size: there are only {len(training):,} images, by --each")
    optimizer = optim.AdamW([q for q in model.parameters() if q.requires_grad], lr=lr, weight_decay=0.01)
    scheduler = optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=epochs * len(loader))
    trainer = Trainer(
        model, optimizer, F.cross_entropy, metrics=["accuracy"], scheduler=scheduler, schedule_per="step",
        autocast=low_type(args),
    )  # fmt: skip
    return trainer.fit(loader, DataLoader(test, 100), epochs=epochs)[-1]["val_accuracy"]


def main() -> None:
    p = arguments(__doc__, epochs=6, batch_size=50, data="fashion-mnist", checkpoints=False)
    p.add_argument("--model", type=Path, default=HOME / "mobilenet", help="folder with the weights")
    p.add_argument("--photos", type=Path, default=HOME / "photos", help="folder with the photographs")
    p.add_argument("--each", type=whole(), default=200, help="training and test images of each class [200]")
    p.add_argument("--size", type=whole(), default=96, help="pixels that images are enlarged to [96]")
    p.add_argument("--lr", type=positive, default=1e-3, help="highest learning rate of fine-tuning [0.001]")
    args = p.parse_args()
    path = find(args.data, "train-images-idx3-ubyte*", "fashion-mnist")[0].parent
    model = mobilenet(args.model)
    recognise(model, args.photos)

    lz.manual_seed(args.seed)
    training = Enlarged(*few(FashionMNIST(path), args.each), args.size, mirror=True)
    test = Enlarged(*few(FashionMNIST(path, train=False), args.each), args.size, mirror=False)
    print(
        f"\nten new classes, {len(training):,} images to learn from, {len(test):,} held out; a classifier on frozen features:"
    )
    start = time.perf_counter()
    classifier = nn.Linear(model.last_channel, 10)
    frozen = train(classifier, features_of(model, training), features_of(model, test), 3e-3, 20, args)
    print(f"\n{time.perf_counter() - start:.0f} s; then all of the network:")
    model.classifier[1] = classifier
    tuned = train(model, training, test, args.lr, args.epochs, args)
    print(f"\n{100 * frozen:.1f} % are right with frozen features, {100 * tuned:.1f} % after fine-tuning")


if __name__ == "__main__":
    start(main)
