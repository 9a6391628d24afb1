"""Operations: one definition each, with all its rules side by side."""

from lezero.ops import (  # noqa: F401
    activations,
    attention,
    conv,
    dropout,
    einsum,
    elementwise,
    embedding,
    indexing,
    losses,
    matmul,
    movement,
    normalization,
    optimizer,
    pooling,
    random,
    reduce,
    resample,
    scan,
    softmax,
    sorting,
)
