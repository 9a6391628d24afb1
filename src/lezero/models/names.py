"""The names that others give to the weights of our models.

Our image models have torchvision's names and our language models Hugging Face's.  What Hugging Face calls the weights of
image models stands in tables of pairs here, read in both directions: ``{0}`` is a number, ``{0+1}`` that number and one, and
``*`` at the end whatever a layer has (weight, bias, statistics).  The names are those in published files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lezero.tensor import cat

NAMINGS = ("torchvision", "huggingface", "lezero")


class NamesError(ValueError):
    """Names that belong to no model that is known, or not to the one that is meant."""


class _Template:
    """Names of one form; gives the numbers in a name, and a name for numbers."""

    def __init__(self, text: str):
        parts = re.split(r"\{(\d)(?:\+(\d+))?\}", text.removesuffix("*"))
        self.texts = parts[::3]
        self.slots = [(int(k), int(more or 0)) for k, more in zip(parts[1::3], parts[2::3])]
        leaf = r"(\w+)" if text.endswith("*") else "()"
        self.pattern = re.compile(r"(\d+)".join(map(re.escape, self.texts)) + leaf)

    def read(self, name: str) -> dict[int | str, Any] | None:
        found = self.pattern.fullmatch(name)
        if found is None:
            return None
        *numbers, leaf = found.groups()
        values: dict[int | str, Any] = {k: int(n) - more for (k, more), n in zip(self.slots, numbers)}
        return None if any(n < 0 for n in values.values()) else values | {"*": leaf}

    def write(self, values: Mapping[int | str, Any]) -> str:
        numbers = [str(values[k] + more) for k, more in self.slots] + [values["*"]]
        return "".join(text + number for text, number in zip(self.texts, numbers))


@dataclass(frozen=True)
class Family:
    """Models of the same names.

    models : functions of ``lezero.models``
    own : whose names ours are
    pairs : Hugging Face's name and ours, one to one
    joined : names of Hugging Face's whose tensors lie behind each other in ours, and our name
    also : other names that Hugging Face's files may have, and the one in `pairs` or `joined`
    others : names of ours that are in no pair, for families that Hugging Face lacks or names as we do
    """

    models: tuple[str, ...]
    own: str
    pairs: tuple[tuple[str, str], ...] = ()
    joined: tuple[tuple[tuple[str, ...], str], ...] = ()
    also: tuple[tuple[str, str], ...] = ()
    others: tuple[str, ...] = ()

    @cached_property
    def to_ours(self) -> list[tuple[_Template, _Template]]:
        return [(_Template(theirs), _Template(ours)) for theirs, ours in self.pairs]

    @cached_property
    def joins(self) -> list[tuple[list[_Template], _Template]]:
        return [([_Template(t) for t in theirs], _Template(ours)) for theirs, ours in self.joined]

    @cached_property
    def older(self) -> list[tuple[_Template, _Template]]:
        return [(_Template(one), _Template(other)) for one, other in self.also]

    @cached_property
    def forms(self) -> dict[str, list[_Template]]:
        """Every form of name there is, by naming."""
        ours = [*map(_Template, self.others), *(t for _, t in self.to_ours), *(t for _, t in self.joins)]
        theirs = [t for t, _ in self.to_ours] + [t for ts, _ in self.joins for t in ts] + [t for t, _ in self.older]
        return {self.own: ours} | ({"huggingface": theirs} if theirs else {})

    def strangers(self, names: Iterable[str], naming: str) -> list[str]:
        """The names that are none of this naming."""
        return [n for n in names if all(form.read(n) is None for form in self.forms[naming])]


def _encoder(prefix: str) -> tuple[str, ...]:
    """BERT's names, with the prefix of a model with a head or without."""
    layer = f"{prefix}encoder.layer.{{0}}."
    return (
        *(f"{prefix}embeddings.{t}_embeddings.weight" for t in ("word", "position", "token_type")),
        f"{prefix}embeddings.position_ids",
        f"{prefix}embeddings.LayerNorm.*",
        *(f"{layer}attention.self.{t}.*" for t in ("query", "key", "value")),
        *(f"{layer}{t}.*" for t in ("attention.output.dense", "attention.output.LayerNorm", "intermediate.dense")),
        *(f"{layer}{t}.*" for t in ("output.dense", "output.LayerNorm")),
        f"{prefix}pooler.dense.*",
    )


def _decoder(prefix: str) -> tuple[str, ...]:
    """GPT-2's names."""
    block = f"{prefix}h.{{0}}."
    return (
        *(f"{prefix}{t}.*" for t in ("wte", "wpe", "ln_f")),
        *(f"{block}{t}.*" for t in ("ln_1", "ln_2", "attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")),
        *(f"{block}attn.{t}" for t in ("bias", "masked_bias")),
    )


_RESNET = "resnet.encoder.stages.{0}.layers.{1}."
_BLOCK = "layer{0+1}.{1}."
_VIT = "vit.encoder.layer.{0}."
_VIT_5 = "vit.layers.{0}."  # in memory, from version 5 of transformers
_TV_VIT = "encoder.layers.encoder_layer_{0}."
_MOBILE = "mobilenet_v2."

FAMILIES = (
    Family(
        ("resnet18", "resnet34", "resnet50", "resnet101"),
        "torchvision",
        (
            ("resnet.embedder.embedder.convolution.*", "conv1.*"),
            ("resnet.embedder.embedder.normalization.*", "bn1.*"),
            (_RESNET + "shortcut.convolution.*", _BLOCK + "downsample.0.*"),
            (_RESNET + "shortcut.normalization.*", _BLOCK + "downsample.1.*"),
            (_RESNET + "layer.{2}.convolution.*", _BLOCK + "conv{2+1}.*"),
            (_RESNET + "layer.{2}.normalization.*", _BLOCK + "bn{2+1}.*"),
            ("classifier.1.*", "fc.*"),
        ),
    ),
    Family(
        ("mobilenet_v2",),
        "torchvision",
        (
            (_MOBILE + "conv_stem.first_conv.convolution.*", "features.0.0.*"),
            (_MOBILE + "conv_stem.first_conv.normalization.*", "features.0.1.*"),
            (_MOBILE + "conv_stem.conv_3x3.convolution.*", "features.1.conv.0.0.*"),
            (_MOBILE + "conv_stem.conv_3x3.normalization.*", "features.1.conv.0.1.*"),
            (_MOBILE + "conv_stem.reduce_1x1.convolution.*", "features.1.conv.1.*"),
            (_MOBILE + "conv_stem.reduce_1x1.normalization.*", "features.1.conv.2.*"),
            (_MOBILE + "layer.{0}.expand_1x1.convolution.*", "features.{0+2}.conv.0.0.*"),
            (_MOBILE + "layer.{0}.expand_1x1.normalization.*", "features.{0+2}.conv.0.1.*"),
            (_MOBILE + "layer.{0}.conv_3x3.convolution.*", "features.{0+2}.conv.1.0.*"),
            (_MOBILE + "layer.{0}.conv_3x3.normalization.*", "features.{0+2}.conv.1.1.*"),
            (_MOBILE + "layer.{0}.reduce_1x1.convolution.*", "features.{0+2}.conv.2.*"),
            (_MOBILE + "layer.{0}.reduce_1x1.normalization.*", "features.{0+2}.conv.3.*"),
            (_MOBILE + "conv_1x1.convolution.*", "features.18.0.*"),
            (_MOBILE + "conv_1x1.normalization.*", "features.18.1.*"),
            ("classifier.*", "classifier.1.*"),
        ),
    ),
    Family(("vgg16", "vgg16_bn"), "torchvision", others=("features.{0}.*", "classifier.{0}.*")),
    Family(
        ("vit_b_16",),
        "torchvision",
        (
            ("vit.embeddings.cls_token", "class_token"),
            ("vit.embeddings.position_embeddings", "encoder.pos_embedding"),
            ("vit.embeddings.patch_embeddings.projection.*", "conv_proj.*"),
            (_VIT + "layernorm_before.*", _TV_VIT + "ln_1.*"),
            (_VIT + "attention.output.dense.*", _TV_VIT + "self_attention.out_proj.*"),
            (_VIT + "layernorm_after.*", _TV_VIT + "ln_2.*"),
            (_VIT + "intermediate.dense.*", _TV_VIT + "mlp.0.*"),
            (_VIT + "output.dense.*", _TV_VIT + "mlp.3.*"),
            ("vit.layernorm.*", "encoder.ln.*"),
            ("classifier.*", "heads.head.*"),
        ),
        tuple(
            (
                tuple(f"{_VIT}attention.attention.{t}.{leaf}" for t in ("query", "key", "value")),
                f"{_TV_VIT}self_attention.in_proj_{leaf}",
            )
            for leaf in ("weight", "bias")
        ),
        (
            *((f"{_VIT_5}layernorm_{t}.*", f"{_VIT}layernorm_{t}.*") for t in ("before", "after")),
            *(
                (f"{_VIT_5}attention.{t[0]}_proj.*", f"{_VIT}attention.attention.{t}.*")
                for t in ("query", "key", "value")
            ),
            (_VIT_5 + "attention.o_proj.*", _VIT + "attention.output.dense.*"),
            (_VIT_5 + "mlp.fc1.*", _VIT + "intermediate.dense.*"),
            (_VIT_5 + "mlp.fc2.*", _VIT + "output.dense.*"),
        ),
    ),
    Family(
        ("bert_base", "bert_base_for_masked_lm", "bert_base_for_sequence_classification"),
        "huggingface",
        others=(
            *_encoder(""),
            *_encoder("bert."),
            "cls.predictions.bias",
            *(f"cls.predictions.{t}.*" for t in ("transform.dense", "transform.LayerNorm", "decoder")),
            "cls.seq_relationship.*",
            "classifier.*",
        ),
    ),
    Family(("gpt2",), "huggingface", others=(*_decoder(""), *_decoder("transformer."), "lm_head.weight")),
)


def recognised(names: Iterable[str], model: str | None = None) -> tuple[Family, str]:
    """(family, naming) that all these names are of.

    Raises
    ------
    NamesError
        If there is none, or it is not that of `model`; names some that are of no form.
    """
    names = list(names)
    families = FAMILIES if model is None else (family_of(model),)
    of: list[tuple[int, str, Family, str]] = []
    for family in families:
        for naming in family.forms:
            strange = family.strangers(names, naming)
            if names and not strange:
                return family, naming
            of.append((len(strange), ", ".join(strange[:3]), family, naming))
    count, shown, family, naming = min(of, key=lambda o: o[0])
    if count == len(names):
        known = model or ", ".join(m for f in FAMILIES for m in f.models)
        raise NamesError(
            f"the names of the tensors are not those of {known}: {', '.join(names[:3]) or 'there are none'}"
        )
    raise NamesError(f"{count} of {len(names)} names are none of {model or family.models[0]}'s ({naming}): {shown}")


def family_of(model: str) -> Family:
    """The family of a model by its function's name."""
    for family in FAMILIES:
        if model in family.models:
            return family
    known = ", ".join(m for f in FAMILIES for m in f.models)
    raise NamesError(f"there are no names but ours for {model!r}; there are for {known}")


def renamed(state: Mapping[str, Any], names: str, model: str | None = None) -> dict[str, Any]:
    """A state with the names of another library, recognised by its own.

    Parameters
    ----------
    state : mapping from name to Tensor
    names : {"torchvision", "huggingface", "lezero"}
    model : the function in ``lezero.models`` that the names have to be of

    Returns
    -------
    dict from name to Tensor; tensors that one library has in one and the other in three are joined or split

    Raises
    ------
    NamesError
        If the names are of no model that is known, or the other library has no such model.
    """
    if names not in NAMINGS:
        raise NamesError(f"names are those of {', '.join(NAMINGS)}, got {names!r}")
    family, have = recognised(state, model)
    want = family.own if names == "lezero" else names
    if want not in family.forms:
        raise NamesError(f"{names} has no {family.models[0]}: its names here are {family.own}'s")
    if have == want:
        return {_newer(name): value for name, value in state.items()} if names == "lezero" else dict(state)
    return _to_ours(family, state) if want == family.own else _to_theirs(family, state)


def _newer(name: str) -> str:
    """A name as BERT's files have had it since 2019."""
    return re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))


def _translated(name: str, pairs: Iterable[tuple[_Template, _Template]]) -> str | None:
    for one, other in pairs:
        values = one.read(name)
        if values is not None:
            return other.write(values)
    return None


def _to_ours(family: Family, state: Mapping[str, Any]) -> dict[str, Any]:
    state = {_translated(name, family.older) or name: value for name, value in state.items()}
    out: dict[str, Any] = {}
    for name, value in state.items():
        ours = _translated(name, family.to_ours)
        if ours is not None:
            out[ours] = value
            continue
        for parts, whole in family.joins:
            values = parts[0].read(name)
            if values is not None:
                needed = [part.write(values) for part in parts]
                missing = [n for n in needed if n not in state]
                if missing:
                    raise NamesError(
                        f"{whole.write(values)} is made of {', '.join(needed)}, and {missing[0]} is missing"
                    )
                out[whole.write(values)] = cat([state[n] for n in needed])
    return out


def _to_theirs(family: Family, state: Mapping[str, Any]) -> dict[str, Any]:
    back = [(ours, theirs) for theirs, ours in family.to_ours]
    out: dict[str, Any] = {}
    for name, value in state.items():
        theirs = _translated(name, back)
        if theirs is not None:
            out[theirs] = value
            continue
        for parts, whole in family.joins:
            values = whole.read(name)
            if values is not None:
                if value.ndim == 0 or int(value.shape[0]) % len(parts):
                    raise NamesError(
                        f"{name} of shape {tuple(value.shape)} is not {len(parts)} tensors behind each other"
                    )
                out |= {p.write(values): v for p, v in zip(parts, value.chunk(len(parts)))}
    return out
