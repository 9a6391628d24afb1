"""Networks in PyTorch, written from their public descriptions, with the parameter names of the published weights.

The names and shapes are torchvision's and Hugging Face's; ``test_models.py`` compares both sides with theirs.
"""

import math
from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import nn


class Residual(nn.Module):
    """A block of a ResNet: convolutions (kernel, channels, stride), and their sum with the input."""

    def __init__(self, channels, convolutions, stride):
        super().__init__()
        width, self.depth = channels, len(convolutions)
        for i, (kernel, out, step) in enumerate(convolutions, 1):
            setattr(self, f"conv{i}", nn.Conv2d(width, out, kernel, step, kernel // 2, bias=False))
            setattr(self, f"bn{i}", nn.BatchNorm2d(out))
            width = out
        self.downsample = None
        if stride != 1 or channels != width:
            shortcut = nn.Conv2d(channels, width, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(width))
        self.out = width

    def forward(self, x):
        y = x
        for i in range(1, self.depth + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            y = y.relu() if i < self.depth else y
        return (y + (x if self.downsample is None else self.downsample(x))).relu()


class ResNet(nn.Module):
    def __init__(self, bottleneck, layers, classes):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        channels = 64
        for i, (width, blocks) in enumerate(zip((64, 128, 256, 512), layers)):
            stage = []
            for b in range(blocks):
                stride = 2 if i > 0 and b == 0 else 1
                plain = [(3, width, stride), (3, width, 1)]
                narrow = [(1, width, 1), (3, width, stride), (1, 4 * width, 1)]
                stage.append(Residual(channels, narrow if bottleneck else plain, stride))
                channels = stage[-1].out
            setattr(self, f"layer{i + 1}", nn.Sequential(*stage))
        self.fc = nn.Linear(channels, classes)

    def forward(self, x):
        x = F.max_pool2d(self.bn1(self.conv1(x)).relu(), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


class MobileNetV2(nn.Module):
    def __init__(self, settings, width_mult, classes):
        super().__init__()

        def rounded(c):
            near = max(8, int(c + 4) // 8 * 8)
            return near if near >= 0.9 * c else near + 8

        def layer(i, o, kernel, stride=1, groups=1):
            conv = nn.Conv2d(i, o, kernel, stride, kernel // 2, groups=groups, bias=False)
            return nn.Sequential(conv, nn.BatchNorm2d(o), nn.ReLU6())

        class Block(nn.Module):
            def __init__(self, i, o, stride, t):
                super().__init__()
                up = [] if t == 1 else [layer(i, i * t, 1)]
                down = [nn.Conv2d(i * t, o, 1, bias=False), nn.BatchNorm2d(o)]
                self.conv = nn.Sequential(*up, layer(i * t, i * t, 3, stride, i * t), *down)
                self.adds = stride == 1 and i == o

            def forward(self, x):
                return x + self.conv(x) if self.adds else self.conv(x)

        channels, last = rounded(32 * width_mult), rounded(1280 * max(1.0, width_mult))
        features = [layer(3, channels, 3, 2)]
        for t, c, n, s in settings:
            for i in range(n):
                features.append(Block(channels, rounded(c * width_mult), s if i == 0 else 1, t))
                channels = rounded(c * width_mult)
        self.features = nn.Sequential(*features, layer(channels, last, 1))
        self.classifier = nn.Sequential(nn.Identity(), nn.Linear(last, classes))

    def forward(self, x):
        return self.classifier(F.adaptive_avg_pool2d(self.features(x), 1).flatten(1))


class VGG(nn.Module):
    def __init__(self, stages, batch_norm, hidden, classes):
        super().__init__()
        layers, channels = [], 3
        for width, count in stages:
            for _ in range(count):
                layers += [nn.Conv2d(channels, width, 3, padding=1)]
                layers += [nn.BatchNorm2d(width)] * batch_norm + [nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(2, 2))
        self.features = nn.Sequential(*layers)
        relu, rest = nn.ReLU(), nn.Identity()
        sizes = [nn.Linear(channels * 49, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, classes)]
        self.classifier = nn.Sequential(sizes[0], relu, rest, sizes[1], relu, rest, sizes[2])

    def forward(self, x):
        return self.classifier(F.adaptive_avg_pool2d(self.features(x), 7).flatten(1))


class ViTBlock(nn.Module):
    def __init__(self, hidden, heads, inner):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(hidden, 1e-6), nn.LayerNorm(hidden, 1e-6)
        self.self_attention = nn.MultiheadAttention(hidden, heads, batch_first=True)
        up, down = nn.Linear(hidden, inner), nn.Linear(inner, hidden)
        self.mlp = nn.Sequential(up, nn.GELU(), nn.Identity(), down, nn.Identity())

    def forward(self, x):
        y = self.ln_1(x)
        x = x + self.self_attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class ViT(nn.Module):
    def __init__(self, image, patch, layers, heads, hidden, inner, classes, representation=None):
        super().__init__()
        self.class_token = nn.Parameter(torch.randn(1, 1, hidden))
        self.conv_proj = nn.Conv2d(3, hidden, patch, patch)
        self.encoder = nn.Module()
        self.encoder.pos_embedding = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, hidden))
        blocks = OrderedDict((f"encoder_layer_{i}", ViTBlock(hidden, heads, inner)) for i in range(layers))
        self.encoder.layers, self.encoder.ln = nn.Sequential(blocks), nn.LayerNorm(hidden, 1e-6)
        head = OrderedDict()
        if representation is not None:
            head["pre_logits"], head["act"] = nn.Linear(hidden, representation), nn.Tanh()
        head["head"] = nn.Linear(hidden if representation is None else representation, classes)
        self.heads = nn.Sequential(head)

    def forward(self, x):
        x = self.conv_proj(x).flatten(2).mT
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], 1) + self.encoder.pos_embedding
        return self.heads(self.encoder.ln(self.encoder.layers(x))[:, 0])


def heads_of(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def attend(q, k, v, heads, seen):
    """softmax(q kᵀ / √features) v, for each head; `seen` broadcasts to (batch, heads, queries, keys)."""
    q, k, v = (heads_of(x, heads) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, seen).transpose(1, 2).flatten(2)


def tree(**children):
    """A module that has nothing but children."""
    node = nn.Module()
    for name, child in children.items():
        setattr(node, name, child)
    return node


class Bert(nn.Module):
    """`head` is None, "mlm" or a number of labels; names have the prefix of the model with a head where there is one."""

    def __init__(self, vocab, hidden, layers, heads, inner, positions, types=2, head=None):
        super().__init__()
        self.heads, self.head = heads, head
        norm = lambda: nn.LayerNorm(hidden, 1e-12)
        linear = lambda i=hidden, o=hidden: nn.Linear(i, o)
        words = nn.Embedding(vocab, hidden, padding_idx=0)
        embeddings = tree(
            word_embeddings=words,
            position_embeddings=nn.Embedding(positions, hidden),
            token_type_embeddings=nn.Embedding(types, hidden),
            LayerNorm=norm(),
        )

        def layer():
            attention = tree(query=linear(), key=linear(), value=linear())
            return tree(
                attention=tree(**{"self": attention}, output=tree(dense=linear(), LayerNorm=norm())),
                intermediate=tree(dense=linear(hidden, inner)),
                output=tree(dense=linear(inner, hidden), LayerNorm=norm()),
            )

        encoder = tree(layer=nn.ModuleList(layer() for _ in range(layers)))
        pooler = {} if head == "mlm" else {"pooler": tree(dense=linear())}
        body = tree(embeddings=embeddings, encoder=encoder, **pooler)
        if head is None:
            self.embeddings, self.encoder, self.pooler = body.embeddings, body.encoder, body.pooler
            return
        self.bert = body
        if head != "mlm":
            self.classifier = linear(hidden, head)
            return
        predictions = tree(transform=tree(dense=linear(), LayerNorm=norm()), decoder=linear(hidden, vocab))
        predictions.decoder.weight, predictions.bias = words.weight, predictions.decoder.bias
        self.cls = tree(predictions=predictions)

    def forward(self, ids, mask=None, types=None):
        body = self if self.head is None else self.bert
        e = body.embeddings
        types = torch.zeros_like(ids) if types is None else types
        x = e.word_embeddings(ids) + e.position_embeddings(torch.arange(ids.shape[1])) + e.token_type_embeddings(types)
        x = e.LayerNorm(x)
        seen = None if mask is None else mask.bool()[:, None, None]
        for block in body.encoder.layer:
            a = block.attention.self
            y = attend(a.query(x), a.key(x), a.value(x), self.heads, seen)
            x = block.attention.output.LayerNorm(x + block.attention.output.dense(y))
            x = block.output.LayerNorm(x + block.output.dense(F.gelu(block.intermediate.dense(x))))
        if self.head is None:
            return x
        if self.head != "mlm":
            return self.classifier(self.bert.pooler.dense(x[:, 0]).tanh())
        p = self.cls.predictions
        return p.decoder(p.transform.LayerNorm(F.gelu(p.transform.dense(x))))


class Transposed(nn.Module):
    """A linear layer with its weight as (in, out)."""

    def __init__(self, i, o):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(i, o) / math.sqrt(i)), nn.Parameter(torch.zeros(o))

    def forward(self, x):
        return F.linear(x, self.weight.T, self.bias)


class GPT2(nn.Module):
    def __init__(self, vocab, positions, width, layers, heads):
        super().__init__()
        self.heads = heads
        block = lambda: tree(
            ln_1=nn.LayerNorm(width),
            attn=tree(c_attn=Transposed(width, 3 * width), c_proj=Transposed(width, width)),
            ln_2=nn.LayerNorm(width),
            mlp=tree(c_fc=Transposed(width, 4 * width), c_proj=Transposed(4 * width, width)),
        )
        self.transformer = tree(
            wte=nn.Embedding(vocab, width),
            wpe=nn.Embedding(positions, width),
            h=nn.ModuleList(block() for _ in range(layers)),
            ln_f=nn.LayerNorm(width),
        )
        self.lm_head = nn.Linear(width, vocab, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, ids, mask=None):
        t, length = self.transformer, ids.shape[1]
        seen = torch.ones(length, length, dtype=torch.bool).tril()
        if mask is not None:
            seen = seen & mask.bool()[:, None, None]
        x = t.wte(ids) + t.wpe(torch.arange(length))
        for block in t.h:
            q, k, v = block.attn.c_attn(block.ln_1(x)).chunk(3, -1)
            x = x + block.attn.c_proj(attend(q, k, v, self.heads, seen))
            x = x + block.mlp.c_proj(F.gelu(block.mlp.c_fc(block.ln_2(x)), approximate="tanh"))
        return self.lm_head(t.ln_f(x))


class UNet(nn.Module):
    def __init__(self, channels, classes, bilinear, width):
        super().__init__()

        def double(i, o, middle=None):
            m = o if middle is None else middle
            first = [nn.Conv2d(i, m, 3, padding=1, bias=False), nn.BatchNorm2d(m), nn.ReLU()]
            second = [nn.Conv2d(m, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU()]
            return tree(double_conv=nn.Sequential(*first, *second))

        def up(i, o):
            if bilinear:
                wider = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
                return tree(up=wider, conv=double(i, o, i // 2))
            return tree(up=nn.ConvTranspose2d(i, i // 2, 2, 2), conv=double(i, o))

        w = [width * 2**k for k in range(5)]
        half = 2 if bilinear else 1
        self.inc = double(channels, width)
        for k in range(1, 5):
            out = w[k] // (half if k == 4 else 1)
            setattr(self, f"down{k}", tree(maxpool_conv=nn.Sequential(nn.MaxPool2d(2), double(w[k - 1], out))))
            setattr(self, f"up{k}", up(w[5 - k], w[4 - k] // (1 if k == 4 else half)))
        self.outc = tree(conv=nn.Conv2d(width, classes, 1))

    def forward(self, x):
        down = [self.inc.double_conv(x)]
        for k in range(1, 5):
            pool, conv = getattr(self, f"down{k}").maxpool_conv
            down.append(conv.double_conv(pool(down[-1])))
        y = down.pop()
        for k in range(1, 5):
            step, skip = getattr(self, f"up{k}"), down.pop()
            y = step.up(y)
            rows, columns = skip.shape[2] - y.shape[2], skip.shape[3] - y.shape[3]
            y = F.pad(y, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
            y = step.conv.double_conv(torch.cat([skip, y], 1))
        return self.outc.conv(y)
