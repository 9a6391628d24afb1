"""Whether a sentence from a film review is for or against the film: a sentence encoder's published weights, fine-tuned.

    python examples/fetch.py reviews minilm
    python examples/review_sentiment.py

The encoder is MiniLM: BERT's structure with 6 layers of 384 features, trained by others to say what sentences mean.  With
`--scratch` a smaller network with the same vocabulary begins from nothing.
"""

from __future__ import annotations

import csv
import math
import unicodedata
from pathlib import Path

import numpy as np

import lezero as lz
from common import HOME, arguments, find, fit, low_type, positive, start
from lezero import models, optim
from lezero.data import DataLoader, Dataset
from lezero.io import load_safetensors
from lezero.nn import functional as F
from lezero.trainer import Trainer

LENGTH = 48  # tokens of a sentence, at most; one in a hundred has more


class WordPiece:
    """BERT's tokenizer for lower-case text: words without accents, then the longest known pieces (Wu et al. 2016)."""

    def __init__(self, vocabulary: Path):
        lines = vocabulary.read_text(encoding="utf-8").splitlines()
        self.ids = {piece: i for i, piece in enumerate(lines)}
        self.unknown, self.begin, self.end = (self.ids[name] for name in ("[UNK]", "[CLS]", "[SEP]"))

    def __len__(self) -> int:
        return len(self.ids)

    def __call__(self, text: str) -> list[int]:
        pieces = [i for word in self._words(text) for i in self._pieces(word)]
        return [self.begin, *pieces[: LENGTH - 2], self.end]

    def _words(self, text: str) -> list[str]:
        plain = unicodedata.normalize("NFD", text.lower())
        plain = "".join(c for c in plain if unicodedata.category(c) != "Mn")
        return "".join(c if c.isalnum() or c.isspace() else f" {c} " for c in plain).split()

    def _pieces(self, word: str) -> list[int]:
        pieces, start = [], 0
        while start < len(word):
            prefix = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((e for e in ends if prefix + word[start:e] in self.ids), None)
            if end is None:
                return [self.unknown]
            pieces.append(self.ids[prefix + word[start:end]])
            start = end
        return pieces


class Sentences(Dataset):
    """Token ids, a mask of what is no padding, and labels; a batch is as long as its longest sentence, in steps of 8."""

    def __init__(self, sentences: list[list[int]], labels: list[int]):
        self.sentences, self.labels = sentences, np.array(labels)

    def __len__(self) -> int:
        return len(self.labels)

    def gather(self, indices):
        chosen = [self.sentences[i] for i in indices]
        ids = np.zeros((len(chosen), -(-max(map(len, chosen)) // 8) * 8), np.int64)
        for row, sentence in zip(ids, chosen):
            row[: len(sentence)] = sentence
        return ids, (ids != 0).astype(np.int64), self.labels[indices]


class SimilarLengths:
    """Batches of indices of sentences of similar length, in a random order: little of a batch is padding."""

    def __init__(self, sentences: list[list[int]], batch_size: int, seed: int):
        self.lengths = np.array([len(sentence) for sentence in sentences])
        self.batch_size, self.seed, self.epoch = batch_size, seed, 0

    def __len__(self) -> int:
        return math.ceil(len(self.lengths) / self.batch_size)

    def __iter__(self):
        random = np.random.default_rng((self.seed, self.epoch))
        self.epoch += 1
        order, many = random.permutation(len(self.lengths)), 20 * self.batch_size
        sorted_parts = [part[np.argsort(self.lengths[part])] for part in np.split(order, range(many, len(order), many))]
        order = np.concatenate(sorted_parts)
        for first in random.permutation(np.arange(0, len(order), self.batch_size)):
            yield order[first : first + self.batch_size].tolist()

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch = state["epoch"]


def reviews(path: Path) -> tuple[list[str], list[int]]:
    """The short sentences of the collection and their labels: 1 is for the film."""
    csv.field_size_limit(1 << 24)
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["source"] == "rotten_tomatoes"]
    return [row["text"] for row in rows], [int(row["label"]) for row in rows]


def network(args, vocabulary: int):
    """The encoder with a classifier on it."""
    if args.scratch:
        sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512}
        return models.bert_base_for_sequence_classification(2, vocab_size=vocabulary, **sizes)
    state = load_safetensors(find(args.model, "*.safetensors", "minilm", "--model")[0])
    layers = {name.split(".")[2] for name in state if name.startswith("encoder.layer.")}
    hidden = state["embeddings.word_embeddings.weight"].shape[1]
    inner = state["encoder.layer.0.intermediate.dense.weight"].shape[0]
    sizes = {"hidden_size": hidden, "num_hidden_layers": len(layers), "intermediate_size": inner}
    model = models.bert_base_for_sequence_classification(2, vocab_size=vocabulary, num_attention_heads=12, **sizes)
    missing = model.load_state_dict(state, strict=False).missing_keys
    assert set(missing) == {"classifier.weight", "classifier.bias"}, missing
    model.bert.embeddings.requires_grad_(False)  # half of the weights, and few of the words are seen often enough
    return model


def main() -> None:
    p = arguments(__doc__, epochs=1, batch_size=32, data="reviews")
    p.add_argument("--model", type=Path, default=HOME / "minilm", help=f"folder with the encoder [{HOME / 'minilm'}]")
    p.add_argument("--scratch", action="store_true", help="begin from random weights instead of the encoder's")
    p.add_argument("--lr", type=positive, help="highest learning rate [1e-4; 1e-3 with --scratch]")
    p.add_argument("--ask", action="append", default=[], help="a sentence to judge after training; may be repeated")
    args = p.parse_args()
    texts, labels = reviews(find(args.data, "*reviews.csv", "reviews")[0])
    tokenizer = WordPiece(find(args.model, "vocab.txt", "minilm", "--model")[0])

    lz.manual_seed(args.seed)
    order = np.random.default_rng(0).permutation(len(texts))  # the same part is held out for every seed
    tokens = [tokenizer(texts[i]) for i in order]
    labels = [labels[i] for i in order]
    held_out = len(order) // 10
    training = Sentences(tokens[held_out:], labels[held_out:])
    loader = DataLoader(training, batch_sampler=SimilarLengths(training.sentences, args.batch_size, args.seed))
    test = DataLoader(Sentences(tokens[:held_out], labels[:held_out]), 64)
    print(f"{len(training):,} sentences to learn from, {held_out:,} held out")

    model = network(args, len(tokenizer))
    lr = args.lr or (1e-3 if args.scratch else 1e-4)
    optimizer = optim.AdamW([q for q in model.parameters() if q.requires_grad], lr=lr, weight_decay=0.01)
    scheduler = optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=args.epochs * len(loader), pct_start=0.1)
    trainer = Trainer(
        model, optimizer, F.cross_entropy, metrics=["accuracy"], scheduler=scheduler, schedule_per="step",
        clip_grad_norm=1.0, autocast=low_type(args),
    )  # fmt: skip
    history = fit(trainer, loader, test, args)
    print(f"{100 * history[-1]['val_accuracy']:.1f} % of the held-out sentences are right")
    model.eval()
    for text in args.ask or ["a warm and funny film that never feels long", "two hours that i will not get back"]:
        with lz.no_grad():
            against, for_it = model(lz.tensor([tokenizer(text)])).softmax(1)[0].tolist()
        print(f"{100 * for_it:5.1f} % for, {100 * against:5.1f} % against: {text}")


if __name__ == "__main__":
    start(main)
