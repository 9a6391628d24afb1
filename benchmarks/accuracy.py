"""How far float32 gradients are from float64 ones, compared with PyTorch's: LeNet and ResNet-18 over many draws.

    python benchmarks/accuracy.py --draws 16

The same weights and data on both sides.  For each draw: the largest distance (relative L2) of a parameter's gradient from
PyTorch's in float64, ours and theirs (the worse of PyTorch's two memory layouts), and the gradient for which ours is worst in
comparison (no distance counts as less than half a unit in the last place).  A ReLU whose input rounds to the other side of zero moves every gradient before it a thousandfold, on either side:
such draws show in the first columns.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import test_model_parity as parity


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("networks", nargs="*", default=list(parity.NETWORKS), help="of " + ", ".join(parity.NETWORKS))
    p.add_argument("--draws", type=int, default=8)
    args = p.parse_args()
    for name in args.networks:
        within = 0
        for seed in range(args.draws):
            ours, theirs = parity.distances(name, seed)
            ratio = {k: ours[k] / max(theirs[k], parity.HALF_ULP) for k in ours}
            worst = max(ratio, key=ratio.__getitem__)
            within += ratio[worst] <= 1.5
            print(
                f"{name} {seed:2d}  ours {max(ours.values()):.1e}  PyTorch {max(theirs.values()):.1e}  "
                f"worst ratio {ratio[worst]:6.2f} ({worst}, {ours[worst]:.1e})",
                flush=True,
            )
        print(f"{name}: every gradient within 1.5 times PyTorch's distance in {within} of {args.draws} draws")


if __name__ == "__main__":
    main()
