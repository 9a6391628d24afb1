"""A character model of GPT-2's structure that learns to write Shakespeare, or poems of the Tang and Song dynasties.

    python examples/fetch.py shakespeare
    python examples/text_generation.py

    python examples/fetch.py poems
    python examples/text_generation.py --text poems

`--data` takes any text file, too.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

import lezero as lz
from common import HOME, Mistake, arguments, find, fit, low_type, positive, start, whole
from lezero import models, optim
from lezero.data import DataLoader, Dataset
from lezero.data.randomness import batch_generator
from lezero.nn import functional as F
from lezero.trainer import Callback, Trainer

TEXTS = {"shakespeare": "*.md", "poems": "[ts]*ng[13]00"}  # tang300 and song100
LENGTH = 128  # characters that the model sees


def read(path: Path, kind: str) -> str:
    """The text of a file, or of a collection's files under a folder, without their marks."""
    paths = [path] if path.is_file() else find(path, TEXTS[kind], kind)
    try:
        text = "\n".join(p.read_text(encoding="utf-8") for p in paths)
    except UnicodeDecodeError:
        raise Mistake(f"--data: {path} is not text in UTF-8") from None
    text = re.sub(r"\x1b\[[\d;]*m|\r", "", text)  # colours of a terminal
    text = re.sub(r"^%$", "", text, flags=re.MULTILINE)  # between poems
    text = re.sub(r"[*_#]+|  $", "", text, flags=re.MULTILINE)  # Markdown
    return re.sub(r"\n{3,}", "\n\n", text)


class Stretches(Dataset):
    """Stretches of a text from anywhere in it: characters, and for each of them the next; `count` make an epoch."""

    def __init__(self, text: np.ndarray, count: int):
        self.text, self.count = text, count

    def __len__(self) -> int:
        return self.count

    def gather(self, indices):
        starts = batch_generator().integers(0, len(self.text) - LENGTH, (len(indices), 1))
        rows = self.text[starts + np.arange(LENGTH + 1)]
        return rows[:, :-1], rows[:, 1:]


def consecutive(text: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """The whole text in stretches that follow each other."""
    return [(text[i : i + LENGTH], text[i + 1 : i + LENGTH + 1]) for i in range(0, len(text) - LENGTH, LENGTH)]


def loss_of(scores, targets):
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def write(model, alphabet: list[str], start: str, count: int, temperature: float = 0.8) -> str:
    """`start` and `count` characters after it, each drawn from what the model expects."""
    ids = [alphabet.index(c) for c in start]
    model.eval()
    with lz.no_grad():
        for _ in range(count):
            window = np.zeros((1, LENGTH), np.int64)  # always one shape; what comes after is not seen
            seen = ids[-LENGTH:]
            window[0, : len(seen)] = seen
            scores = model(lz.tensor(window))[0, len(seen) - 1]
            ids.append(lz.multinomial((scores.float() / temperature).softmax(0), 1).item())
    model.train()
    return "".join(alphabet[i] for i in ids)


class Sample(Callback):
    """Prints what the model writes after each epoch."""

    def __init__(self, alphabet: list[str], start: str, count: int):
        self.alphabet, self.start, self.count = alphabet, start, count

    def on_epoch_end(self, trainer, logs) -> None:
        print(f"\n{write(trainer.model, self.alphabet, self.start, self.count)}\n", flush=True)


def main() -> None:
    p = arguments(__doc__, epochs=10, batch_size=64, data=None)
    p.add_argument("--text", choices=TEXTS, default="shakespeare", help="which of the two collections [shakespeare]")
    p.add_argument("--steps", type=whole(), default=100, help="optimizer steps that count as an epoch [100]")
    p.add_argument(
        "--width", type=whole(32, multiple_of=32), default=128, help="features of a character, a multiple of 32 [128]"
    )
    p.add_argument("--layers", type=whole(), default=4, help="transformer blocks [4]")
    p.add_argument("--lr", type=positive, default=3e-3, help="highest learning rate [0.003]")
    p.add_argument("--sample", type=whole(0), default=200, help="characters written after each epoch [200]")
    p.add_argument("--start", help="what samples begin with [a line break]")
    args = p.parse_args()
    text = read(args.data or HOME / args.text, args.text)
    start = args.start or "\n"
    alphabet = sorted(set(text))
    if strange := set(start) - set(alphabet):
        raise Mistake(f"--start: the text has no {''.join(sorted(strange))!r}")
    ids = np.searchsorted(alphabet, list(text))
    held_out = len(ids) // 20
    if held_out <= LENGTH:
        raise Mistake(
            f"--data: {len(text):,} characters are too few: a twentieth is held out, in stretches of {LENGTH}"
        )
    print(f"{len(text):,} characters, {len(alphabet):,} different ones; the last {held_out:,} are held out")

    lz.manual_seed(args.seed)
    loader = DataLoader(Stretches(ids[:-held_out], args.steps * args.batch_size), args.batch_size)
    validation = DataLoader(consecutive(ids[-held_out:]), 64)
    model = models.gpt2(
        vocab_size=len(alphabet),
        n_positions=LENGTH,
        n_embd=args.width,
        n_layer=args.layers,
        n_head=args.width // 32,
        dropout=0.0,
    )
    optimizer = optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.99), weight_decay=0.1)
    scheduler = optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=args.epochs * len(loader), pct_start=0.1)
    trainer = Trainer(
        model, optimizer, loss_of, scheduler=scheduler, schedule_per="step", clip_grad_norm=1.0, autocast=low_type(args),
        callbacks=[Sample(alphabet, start, args.sample)],
    )  # fmt: skip
    history = fit(trainer, loader, validation, args)
    print(f"held-out text: {history[-1]['val_loss'] / np.log(2):.2f} bits a character\n")
    print(write(model, alphabet, start, 3 * args.sample))


if __name__ == "__main__":
    start(main)
