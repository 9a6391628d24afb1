"""What recording costs: the Python time of a network's whole training step with execution stubbed out, by node.

    python benchmarks/recording.py [bert | resnet50]

BERT is the masked-LM BERT-base (12 layers, 768 wide, tied decoder).  A plan that computes nothing stands in for
restructuring, compiling and running, so what is timed is the user's code, the layers, recording, the gradient walk and the
optimizer, and finding out what is alive.  "New trace" is the median of steps that each begin a trie anew, "repeated" that of
steps that follow their trace.  Garbage is collected before each step and not switched off, so the caches are cold.
"""

from __future__ import annotations

import argparse
import functools
import gc
import statistics
import time

import numpy as np

import lezero as lz
from lezero import models, nn, optim
from lezero.graph.dim import rehint
from lezero.graph.node import Graph
from lezero.hal.backend import Program
from lezero.hal.buffer import Buffer
from lezero.nn import functional as F
from lezero.runtime import run, trie


class Nothing(Program):
    """Results of the right shape and dtype that cost neither time nor memory."""

    def __init__(self, outputs):
        self.outputs, self.arrays = outputs, {}

    def run(self, inputs, bindings, donated=()):
        key = tuple(bindings)
        if key not in self.arrays:
            self.arrays[key] = [nothing(rehint(n.shape, bindings), n.dtype) for n in self.outputs]
        return [Buffer(a) for a in self.arrays[key]]


@functools.cache
def nothing(shape, dtype):
    return np.broadcast_to(np.zeros((), dtype.numpy), tuple(map(int, shape)))


def plan_nothing(rec, ending, *args):
    return run.Plan(Nothing(ending.outputs), Graph((), ending.outputs), tuple(range(len(rec.leaf_nodes))), ())


class Layer(nn.Module):
    def __init__(self, h=768, heads=12, f=3072):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(h, h) for _ in range(4))
        self.ln1, self.ln2 = nn.LayerNorm(h, 1e-12), nn.LayerNorm(h, 1e-12)
        self.i, self.out = nn.Linear(h, f), nn.Linear(f, h)

    def forward(self, x):
        b, t, h = x.shape
        split = lambda y: y.view(b, t, self.heads, h // self.heads).transpose(1, 2)
        a = F.scaled_dot_product_attention(split(self.q(x)), split(self.k(x)), split(self.v(x)))
        x = self.ln1(x + self.o(a.transpose(1, 2).reshape(b, t, h)))
        return self.ln2(x + self.out(F.gelu(self.i(x))))


class Bert(nn.Module):
    def __init__(self, vocabulary=30522, h=768, layers=12):
        super().__init__()
        self.w, self.p, self.t = nn.Embedding(vocabulary, h), nn.Embedding(512, h), nn.Embedding(2, h)
        self.ln, self.ln2 = nn.LayerNorm(h, 1e-12), nn.LayerNorm(h, 1e-12)
        self.layers = nn.ModuleList(Layer(h) for _ in range(layers))
        self.dense = nn.Linear(h, h)
        self.bias = nn.Parameter(lz.zeros(vocabulary))

    def forward(self, ids):
        x = self.ln(self.w(ids) + self.p(lz.arange(ids.shape[1]))[None] + self.t(lz.zeros_like(ids)))
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.ln2(F.gelu(self.dense(x))), self.w.weight, self.bias)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("network", nargs="?", default="bert", choices=["bert", "resnet50"])
    p.add_argument("--steps", type=int, default=20, help="repeated steps")
    p.add_argument("--traces", type=int, default=9, help="new traces")
    p.add_argument("--profile", action="store_true")
    args = p.parse_args()
    run._build = plan_nothing
    r = np.random.default_rng(0)
    if args.network == "bert":
        model = Bert()
        optimizer = optim.AdamW(model.parameters(), lr=1e-4)
        x, y = lz.tensor(r.integers(0, 30522, (8, 128))), lz.tensor(r.integers(0, 30522, 8 * 128))
    else:
        model = models.resnet50()
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x, y = lz.tensor(r.normal(size=(16, 3, 224, 224)).astype(np.float32)), lz.tensor(r.integers(0, 1000, 16))

    def step():
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.reshape(-1, out.shape[-1]), y)
        loss.backward()
        optimizer.step()
        return loss

    step()  # parameters and optimizer state exist from here on

    def measured(prepare, count):
        """(seconds of the median step, nodes it recorded)"""
        times = []
        for _ in range(count):
            prepare()
            gc.collect()
            before = lz.runtime.stats()["nodes_run"]
            start = time.thread_time()
            step()
            times.append(time.thread_time() - start)
        return statistics.median(times), lz.runtime.stats()["nodes_run"] - before

    def anew():
        trie.size = trie.MAX_TRIE_NODES + 1
        lz.realize(lz.zeros(1))

    new, nodes = measured(anew, args.traces)
    step()
    repeated, same = measured(lambda: None, args.steps)
    assert nodes == same
    print(f"nodes recorded: {nodes} a step")
    print(f"new trace: {new * 1e3:.2f} ms a step, {new / nodes * 1e6:.2f} us a node (target 5)")
    print(f"repeated:  {repeated * 1e3:.2f} ms a step, {repeated / nodes * 1e6:.2f} us a node (target 2)")
    if args.profile:
        import cProfile
        import pstats

        prof = cProfile.Profile()
        prof.runcall(lambda: [step() for _ in range(10)])
        pstats.Stats(prof).sort_stats("tottime").print_stats(30)


if __name__ == "__main__":
    main()
