"""How far float32 gradients are from float64 ones, compared with PyTorch's: LeNet, ResNets and BERT over many draws.

    python benchmarks/accuracy.py --draws 16
    python benchmarks/accuracy.py bert-base --draws 2
    python benchmarks/accuracy.py resnet18 resnet50 --dtype bf16

The same weights and data on both sides.  For each draw: the largest distance (relative L2) of a parameter's gradient from
PyTorch's in float64, ours and theirs (the worse of PyTorch's two memory layouts), and the gradient for which ours is worst in
comparison (no distance counts as less than half a unit in the last place).  A ReLU whose input rounds to the other side of zero moves every gradient before it a thousandfold, on either side:
such draws show in the first columns.  In ResNet-50 every draw is one, so the last line compares root mean squares over the draws.
`bert-base` has all 12 layers and 30,522 words.  Before the draws come the loss and the gradients in float64 beside PyTorch's.
With `--dtype bf16` both sides compute under their autocast to bfloat16.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import test_model_parity as parity

NETWORKS = parity.NETWORKS
NETWORKS["bert-base"] = parity.bert(12, 30522, 4, 64)


def in_float64(name: str) -> str:
    make, reference, state, inputs, labels = parity.case(name)
    loss, grads = parity.ours(make, state, inputs, labels, parity.lz.float64)
    expected, exact = parity.theirs(reference, state, inputs, labels, parity.torch.float64)
    far = parity.distances_from(exact, grads)
    return f"loss {abs(loss / expected - 1):.1e}, gradients at most {max(far.values()):.1e}"


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("networks", nargs="*", default=list(NETWORKS)[:4], help="of " + ", ".join(NETWORKS))
    p.add_argument("--draws", type=int, default=8)
    p.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    args = p.parse_args()
    for name in args.networks:
        print(f"{name}: distance from PyTorch's in float64: {in_float64(name)}", flush=True)
        within, draws = 0, []
        for seed in range(args.draws):
            ours, theirs = parity.distances(name, seed, args.dtype == "bf16")
            draws.append((ours, theirs))
            ratio = {k: ours[k] / max(theirs[k], parity.HALF_ULP) for k in ours}
            worst = max(ratio, key=ratio.__getitem__)
            within += ratio[worst] <= 1.5
            print(
                f"{name} {seed:2d}  ours {max(ours.values()):.1e}  PyTorch {max(theirs.values()):.1e}  "
                f"worst ratio {ratio[worst]:6.2f} ({worst}, {ours[worst]:.1e})",
                flush=True,
            )
        near, far = map(parity.over_draws, zip(*draws))
        largest = max(near[k] / max(far[k], parity.HALF_ULP) for k in near)
        print(f"{name}: largest ratio of root mean squares over the draws {largest:.2f}")
        print(f"{name}: every gradient within 1.5 times PyTorch's distance in {within} of {args.draws} draws")


if __name__ == "__main__":
    main()
