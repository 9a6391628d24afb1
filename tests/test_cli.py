"""The command line as a new user meets it: results, mistakes in one line, Ctrl-C."""

import functools
import gzip
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import lezero as lz
from lezero.cli import COMMANDS, run
from lezero.cli.networks import NETWORKS, Classifier, resized
from lezero.cli.onnx import example_of
from lezero.cli.others import OTHERS
from lezero.cli.pictures import draw, side_by_side
from lezero.data.randomness import batch_randomness
from test_data_images import idx, write_mnist


@pytest.fixture
def call(capsys):
    """Run a command line; (exit code, standard output, standard error)."""

    def call(*arguments):
        code = run([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_mnist(tmp_path_factory.mktemp("mnist"), count=30, zipped=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """An untrained classifier for 28x28 images."""
    path = tmp_path_factory.mktemp("model") / "m.lzm"
    Classifier("lenet5", 28, [str(n) for n in range(10)]).save(path)
    return path


def process(*arguments, **options):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.Popen(
        [sys.executable, "-m", "lezero.cli", *map(str, arguments)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


# -- the commands ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name, call):
    code, out, err = call(name, "--help")
    assert code == 0 and out.startswith(f"Usage: lezero {name}") and not err
    assert COMMANDS[name][2].split()[0] in out


@pytest.mark.parametrize("module", ["lezero", "lezero.cli"])
def test_run_as_a_module(module):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-m", module, "version"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["lezero", lz.__version__]


def test_help_lists_the_commands_without_importing_them():
    text = (
        "import sys; from lezero.cli import run; run(['--help']); print([m for m in sys.modules if 'lezero.cli.' in m])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in COMMANDS) and done.stdout.endswith("[]\n")


def test_version(call):
    assert call("version") == (0, f"lezero {lz.__version__}\n", "")
    assert json.loads(call("version", "--json")[1]) == {"version": lz.__version__}


def test_train_eval_and_predict_on_a_folder(call, folder, tmp_path):
    out = tmp_path / "x.lzm"
    options = ("--model", "lenet5", "--data", folder, "--batch-size", 10, "--lr", "1e-3")
    code, text, err = call("train", *options, "--epochs", 1, "--out", out)
    assert code == 0 and err == "" and "epoch 1/1" in text and f"saved {out}" in text
    code, text, _ = call("train", *options, "--epochs", 1, "--out", out, "--resume", "--json")
    assert code == 0 and json.loads(text)["epochs"] == 1
    code, _, err = call("train", *options, "--epochs", 2, "--out", out, "--resume")
    assert code == 2 and "--resume needs the options as before: epochs was 1, not 2" in err
    code, text, _ = call("eval", out, "--data", folder, "--json")
    assert code == 0 and json.loads(text)["images"] == 15
    code, text, _ = call("predict", out, "--data", folder, "--count", 3, "--json")
    entries = json.loads(text)
    assert code == 0 and len(entries) == 3 and set(entries[0]) == {"image", "class", "probability", "truth"}
    code, text, _ = call("predict", out, "--data", folder, "--count", 3, "--show")
    assert code == 0 and len(text.splitlines()) >= 28 and text.count("%)") == 3


def test_predict_reads_idx_npy_and_pictures(call, model, tmp_path):
    images = np.zeros((2, 28, 28), np.uint8)
    (tmp_path / "i.gz").write_bytes(gzip.compress(idx(images)))
    np.save(tmp_path / "bytes.npy", images)
    np.save(tmp_path / "floats.npy", images[0] / 255)
    np.save(tmp_path / "channels.npy", images[:, None])
    files = [tmp_path / n for n in ("i.gz", "bytes.npy", "floats.npy", "channels.npy")]
    code, out, err = call("predict", model, *files, "--json")
    assert err == ""
    entries = json.loads(out)
    assert code == 0 and [e["image"] for e in entries][-3:] == ["floats.npy[0]", "channels.npy[0]", "channels.npy[1]"]
    assert len({e["probability"] for e in entries}) == 1


def test_predict_reads_pictures(call, model, tmp_path):
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (40, 50)).save(tmp_path / "p.png")
    code, _, err = call("predict", model, tmp_path / "p.png")
    assert code == 0
    assert err == (
        f"{tmp_path / 'p.png'}: colours were turned into grey\n"
        "p.png: images of 50x40 pixels were fitted into the 28x28 that the model was trained on\n"
    )
    image.new("L", (28, 28), 200).save(tmp_path / "g.png")
    assert call("predict", model, tmp_path / "g.png")[::2] == (0, "")
    image.fromarray(np.full((28, 28), 40_000, np.uint16)).save(tmp_path / "deep.png")
    code, _, err = call("predict", model, tmp_path / "deep.png")
    assert code == 2 and "values from 0 to 40000; the model was trained on grey values from 0 to 255 (or 0 to 1)" in err


STROKES = np.zeros((28, 28), np.uint8)
STROKES[4:24, 10:14] = 255
STROKES[20:24, 10:20] = 128


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (STROKES / 255, "values from 0 to 1 were taken to mean 0 to 255"),
        ((STROKES / 255).astype(np.float32)[None, None], "values from 0 to 1 were taken to mean 0 to 255"),
        (STROKES.astype(np.int64), None),
        (STROKES.astype(np.float64), None),
        (np.stack([STROKES] * 3, -1), "colours were turned into grey"),
        (np.stack([STROKES] * 3)[None], "colours were turned into grey"),
        (STROKES[..., None], None),
    ],
)
def test_predict_converts_what_can_only_mean_one_thing_and_says_so(given, said, call, model, tmp_path):
    np.save(tmp_path / "as_trained.npy", STROKES)
    np.save(tmp_path / "given.npy", given)
    _, wanted, _ = call("predict", model, tmp_path / "as_trained.npy", "--json")
    code, out, err = call("predict", model, tmp_path / "given.npy", "--json")
    assert code == 0 and json.loads(out)[0]["probability"] == json.loads(wanted)[0]["probability"]
    assert len(json.loads(out)) == 1
    assert err == ("" if said is None else f"{tmp_path / 'given.npy'}: {said}\n")


def test_zeros_and_ones_are_black_and_white(call, model, tmp_path):
    np.save(tmp_path / "white.npy", (STROKES > 0) * np.uint8(255))
    np.save(tmp_path / "bools.npy", STROKES > 0)
    np.save(tmp_path / "ones.npy", (STROKES > 0).astype(np.uint8))
    code, out, err = call("predict", model, *(tmp_path / f"{n}.npy" for n in ("white", "bools", "ones")), "--json")
    assert code == 0 and len({e["probability"] for e in json.loads(out)}) == 1
    assert err.count("values from 0 to 1 were taken to mean 0 to 255") == 2


def test_predict_says_what_it_cannot_know(call, model, tmp_path):
    np.save(tmp_path / "x.npy", STROKES // 16)
    code, _, err = call("predict", model, tmp_path / "x.npy")
    assert code == 0 and "the largest value is 15, where 255 is white" in err
    np.save(tmp_path / "x.npy", (STROKES - 33.0) / 78)
    code, out, err = call("predict", model, tmp_path / "x.npy")
    assert code == 2 and out == "" and "holds values from -0.423077 to 2.84615" in err and "0 to 255 (or 0 to 1)" in err
    np.save(tmp_path / "x.npy", STROKES[:20])
    assert "images of 20x28 pixels were fitted into the 28x28" in call("predict", model, tmp_path / "x.npy")[2]


def test_without_pillow_pictures_say_what_to_install(call, model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    (tmp_path / "p.png").write_bytes(b"\x89PNG")
    assert "pip install pillow" in call("predict", model, tmp_path / "p.png")[2]


def test_cache_shows_and_clears(call, tmp_path, monkeypatch):
    monkeypatch.setenv("LEZERO_CACHE_DIR", str(tmp_path))
    (tmp_path / "a.o").write_bytes(bytes(100))
    code, out, _ = call("cache", "--json")
    assert code == 0 and json.loads(out)["entries"] == 1 and json.loads(out)["bytes"] == 100
    assert "1 kernels" in call("cache", "show")[1]
    assert call("cache", "clear")[:2] == (0, f"1 kernels deleted from {tmp_path}\n")
    assert not list(tmp_path.iterdir())


def test_doctor_checks_itself(call):
    code, out, _ = call("doctor", "--json")
    facts = json.loads(out)
    assert code == 0 and facts["self_check"]["passed"] and facts["self_check"]["seconds"] < 30
    assert facts["cpu"]["level"] in facts["cpu"]["available"] and "numpy" in facts["backends"]
    assert {"numpy", "onnx", "onnxruntime", "einops", "torch"} <= facts["packages"].keys()
    assert "self-check       passed" in call("doctor")[1]


def test_doctor_says_when_the_cache_cannot_be_written(call, monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("LEZERO_CACHE_DIR", str(blocked / "kernels"))
    assert "NOT WRITABLE" in call("doctor")[1]
    assert "NOT WRITABLE" in call("cache")[1] and not json.loads(call("cache", "--json")[1])["writable"]


def test_explain_writes_a_page(call, tmp_path):
    code, out, err = call("explain", "lenet5", "--batch", "2", "--train", "--html", tmp_path / "page.html")
    size = f"{(tmp_path / 'page.html').stat().st_size / 1024:.1f} KiB"
    assert (code, out, err) == (0, f"wrote {tmp_path / 'page.html'} ({size}), to open in a browser\n", "")
    text = (tmp_path / "page.html").read_text()
    assert "LeNet" in text and ".py:" not in text  # layers, and nobody's lines


@pytest.fixture
def graph(tmp_path):
    """An ONNX file: a table's rows, added up over the words, times a weight of each."""
    onnx = pytest.importorskip("onnx", reason="needed to write the file: pip install 'lezero[onnx]'")
    info, kinds = onnx.helper.make_tensor_value_info, onnx.TensorProto
    made = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Gather", ["table", "words"], ["rows"]),
            onnx.helper.make_node("Einsum", ["rows", "weights"], ["y"], equation="bwf,bw->bf"),
        ],
        "graph",
        [info("words", kinds.INT64, ["batch", "length"]), info("weights", kinds.FLOAT, ["batch", "length"])],
        [info("y", kinds.FLOAT, ["batch", 4])],
        [onnx.numpy_helper.from_array(np.ones((5, 4), np.float32), "table")],
    )
    path = tmp_path / "graph.onnx"
    onnx.save(onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10), path)
    return path


def test_onnx_files_are_explained_at_given_extents(call, graph):
    for shapes, extents in ((), (2, 128)), (("words=4x9",), (4, 9)), (("weights=3x7", "words=3x7"), (3, 7)):
        assert [tuple(x.shape) for x in example_of(str(graph), 2, shapes).inputs] == [extents, extents]
    code, out, err = call("explain", graph, "--shape", "words=4x9")
    assert (code, err) == (0, "") and out.startswith("OnnxModule") and "dot" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--shape", "ids=2x9"), "the model has no input 'ids'; its inputs are words, weights"),
        (("--shape", "words=2,9"), "NAME=1x3x224x224 is needed, got 'words=2,9'"),
        (("--shape", "words=2x9", "--shape", "weights=2x8"), "length is 9 in 'words'"),
        (("--shape", "words=2"), "input 'words' should have shape [batch, length], not [2]"),
        (("--train",), "has no loss of its own"),
    ],
)
def test_extents_that_do_not_fit_an_onnx_file_are_one_line(call, graph, options, message):
    code, out, err = call("explain", graph, *options)
    assert (code, out) == (2, "") and message in err and err.count("\n") == 1


def test_explain_prints_json_alone_beside_a_page(call, tmp_path):
    code, out, err = call("explain", "lenet5", "--batch", "2", "--json", "--html", tmp_path / "page.html")
    assert code == 0 and json.loads(out) and err.startswith("wrote ")


TRANSFORMER = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 50,
}
SMALL = {
    **dict.fromkeys(("bert_base", "bert_base_for_masked_lm", "bert_base_for_sequence_classification"), TRANSFORMER),
    "gpt2": {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 50},
    "vit_b_16": {"num_layers": 1, "hidden_dim": 16, "num_heads": 2, "mlp_dim": 32},
    "resnet18": {}, "mobilenet_v2": {"width_mult": 0.1}, "unet": {},
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_networks_of_models_are_explained_by_name(call, monkeypatch, name):
    monkeypatch.setattr(lz.models, name, functools.partial(getattr(lz.models, name), **SMALL[name]))
    code, out, err = call("explain", name, "--batch", "2", "--json", *(() if name == "bert_base" else ("--train",)))
    assert code == 0 and err == "" and json.loads(out)


def test_every_network_of_models_has_a_name_here():
    functions = {n for n in lz.models.__all__ if n.islower()}
    assert functions | {"residual"} == set(NETWORKS) | set(OTHERS)
    assert len(functions) == 14 and not set(NETWORKS) & set(OTHERS)


@pytest.mark.parametrize(("name", "size", "made"), [("vit_b_16", 28, 32), ("mobilenet_v2", 8, 8), ("lenet5", 8, 28)])
def test_classifiers_of_models_take_grey_images_of_any_size(monkeypatch, name, size, made):
    monkeypatch.setattr(lz.models, name, functools.partial(getattr(lz.models, name), **SMALL.get(name, {})))
    classifier = Classifier(name, size, ["a", "b", "c"])
    assert classifier.size == made
    assert classifier.probabilities(np.zeros((2, size, size), np.uint8)).shape == (2, 3)
    assert NETWORKS["vgg16"].size(8) == 32 and NETWORKS["vgg16"].size(64) == 64  # its images are halved five times


# -- mistakes -------------------------------------------------------------------------------------------------

MISTAKES = [
    ((), "Usage: lezero"),
    (("quikstart",), "no such command 'quikstart'"),
    (("train", "--model", "lenet6"), "there is no network 'lenet6'; did you mean lenet5?"),
    (("train", "--model", "zzz"), "there is no network 'zzz'; there are residual, lenet5, resnet18"),
    (
        ("train", "--model", "gpt2"),
        "gpt2 does not classify images, which is what train teaches (lezero explain gpt2 shows it)",
    ),
    (("train", "--epochs", "0"), "'--epochs'"),
    (
        ("train", "--data", "/nowhere/at/all"),
        "there is no folder '/nowhere/at/all'. MNIST wants train-images-idx3-ubyte",
    ),
    (("train", "--out", "/nowhere/x.lzm"), "there is no folder '/nowhere'"),
    (("train", "--resume", "--out", "never.lzm"), "there is no never-checkpoints/last.lzm to continue from"),
    (("quickstart", "--data", "/nowhere"), "there is no folder '/nowhere'"),
    (("quickstart", "--output", "/nowhere/x.lzm"), "there is no folder '/nowhere'"),
    (("eval", "/nowhere.lzm"), "there is no file '/nowhere.lzm'"),
    (("eval", __file__), "is not an .lzm file"),
    (("eval", "MODEL", "--data", "/nowhere"), "there is no folder '/nowhere'"),
    (("predict", "MODEL"), "name either files with images or --data"),
    (("predict", "MODEL", "/nowhere.png"), "there is no file '/nowhere.png'"),
    (("predict", "MODEL", "/"), "is a folder"),
    (("explain", "/nowhere.onnx"), "there is no file '/nowhere.onnx'"),
    (("explain", "lenet5", "--shape", "x=2"), "--shape is for .onnx files"),
    (
        ("explain", "lenet6"),
        "'lenet6' is no .lzm or .onnx file, and there is no network 'lenet6'; did you mean lenet5?",
    ),
    (("explain", "bert_base", "--train"), "--train: bert_base has no loss of its own; bert_base_for_masked_lm has"),
    (("explain", "lenet5", "--html", "/nowhere/x.html"), "there is no folder '/nowhere'"),
    (("cache", "burn"), "'burn' is not one of"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES, ids=lambda v: " ".join(v)[:30])
def test_a_mistake_is_one_clear_line_and_exit_code_2(arguments, message, call, model):
    code, out, err = call(*(model if a == "MODEL" else a for a in arguments))
    assert code == 2 and message in out + err
    if arguments:
        assert out == "" and err.startswith("lezero: ") and err.count("\n") == 1


def test_a_damaged_file_is_one_line(call, model, tmp_path):
    content = bytearray(model.read_bytes())
    content[500] ^= 1
    (tmp_path / "x.lzm").write_bytes(content)
    code, _, err = call("eval", tmp_path / "x.lzm")
    assert code == 2 and "has been altered or damaged" in err and err.count("\n") == 1
    lz.save({"classifier": {"network": "residual", "size": 8, "classes": ["a"]}, "state": {}}, tmp_path / "z.lzm")
    code, _, err = call("eval", tmp_path / "z.lzm")
    assert code == 2 and "cannot build" in err and err.count("\n") == 1


@pytest.mark.parametrize("command", ["eval", "explain"])
def test_another_file_is_described_with_what_to_do(call, tmp_path, command):
    layer = lz.nn.Linear(2, 2)
    trainer = lz.Trainer(layer, lz.optim.SGD(layer.parameters()))
    contents = {
        "a trainer's checkpoint (epoch 0, step 0); build the model in Python": trainer.state_dict(),
        "the state of a model (2 tensors); build the model in Python": layer.state_dict(),
        "a dictionary (a); lz.load opens it": {"a": 1},
        "a list; lz.load opens it": [1],
    }
    for what, content in contents.items():
        lz.save(content, tmp_path / "y.lzm")
        code, _, err = call(command, tmp_path / "y.lzm")
        assert code == 2 and f"holds no classifier that `lezero train` or `lezero quickstart` saved, but {what}" in err
        assert err.count("\n") == 1


def test_a_limit_that_is_no_number_is_one_line(call, monkeypatch):
    monkeypatch.setenv("LEZERO_CACHE_LIMIT", "lots")
    code, _, err = call("cache")
    assert code == 2 and "LEZERO_CACHE_LIMIT='lots'" in err


def test_ctrl_c_saves_exits_130_and_the_run_can_be_resumed(folder, tmp_path, call):
    options = ["--model", "lenet5", "--data", folder, "--epochs", "10000", "--out", tmp_path / "m.lzm"]
    running = process("train", *options, start_new_session=True)
    assert running.stdout.readline().startswith("epoch 1/10000")
    os.killpg(running.pid, signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert err.count("\n") == 1 and "saved to" in err and "lezero train --resume" in err and "Traceback" not in out
    assert (tmp_path / "m-checkpoints" / "last.lzm").exists()


def test_a_reader_that_goes_away_is_no_error(model, folder):
    running = process("predict", model, "--data", folder, "--show")
    running.stdout.close()
    assert running.stderr.read() == "" and running.wait(60) == 0
    running.stderr.close()


# -- quickstart -----------------------------------------------------------------------------------------------


def test_quickstart_learns_saves_and_classifies_in_a_new_process(tmp_path):
    pytest.importorskip("sklearn")
    start = time.monotonic()
    running = process("quickstart", "--output", tmp_path / "digits.lzm")
    out, err = running.communicate(timeout=600)
    assert running.returncode == 0, err
    assert err == "" and time.monotonic() - start < 120
    reached = next(line for line in out.splitlines() if line.startswith("After"))
    assert float(reached.split(",")[1].split("%")[0]) >= 98.6
    assert out.count("%)") == 8 and "kernels" in out and "peak" in out and "lezero explain" in out
    assert Classifier.open(tmp_path / "digits.lzm").name == "residual"


# -- pictures -------------------------------------------------------------------------------------------------


def test_pictures_are_drawn_with_characters_where_there_are_no_colours(monkeypatch):
    image = np.array([[0, 255], [128, 0]], np.uint8)
    assert draw(image) == ["  @@", "++  "]
    assert side_by_side([image, image], ["one", "two"], columns=80) == "  @@    @@\n++    ++  \none   two"
    assert side_by_side([image, image], ["one", "two"], columns=5).count("\n\n") == 1
    monkeypatch.setattr("lezero.cli.pictures._colours", lambda: True)
    (line,) = draw(image)
    assert line.count("▀") == 2 and line.endswith("\x1b[0m") and "38;5;232;48;5;243" in line


def test_images_are_brought_to_a_size():
    assert resized(np.ones((1, 8, 8), np.uint8), 28).shape == (1, 28, 28)
    assert resized(np.ones((1, 8, 8), np.uint8), 28).sum() == 24 * 24
    assert resized(np.full((1, 100, 60), 9, np.uint8), 28).shape == (1, 28, 28)
    image = np.arange(64, dtype=np.uint8).reshape(1, 8, 8)
    assert np.array_equal(resized(image, 8), image)


def test_training_images_are_bent_a_little():
    from lezero.cli.recipe import bent

    images = np.random.default_rng(0).random((5, 1, 9, 7), np.float32)
    np.testing.assert_array_equal(bent(images, 0, 0), images)
    with batch_randomness(3, 1):
        moved = bent(images, 0.15, 1)
    assert moved.shape == images.shape and moved.dtype == np.float32
    assert moved.min() >= 0 and moved.max() <= 1 and not np.array_equal(moved, images)
    with batch_randomness(3, 1):
        np.testing.assert_array_equal(bent(images, 0.15, 1), moved)
    spot = np.zeros((200, 1, 9, 9), np.float32)
    spot[:, 0, 4, 4] = 1  # the centre stays within a pixel or so of where it was, in each direction
    found = bent(spot, 0.15, 1)[:, 0]
    assert found[:, 3:6, 3:6].sum() > 0.95 * found.sum()
    rows, columns = (found.sum(axis) @ np.arange(9) / found.sum((1, 2)) for axis in (2, 1))
    assert 0.4 < np.std(rows) < 0.8 and 0.4 < np.std(columns) < 0.8
