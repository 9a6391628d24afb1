"""Modules, layers, losses and their functions."""

from lezero.nn import functional, init, utils
from lezero.nn.activation import (
    CELU,
    ELU,
    GELU,
    GLU,
    SELU,
    Hardshrink,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    Mish,
    PReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softmin,
    Softplus,
    Softshrink,
    Softsign,
    Tanh,
    Tanhshrink,
    Threshold,
)
from lezero.nn.attention import MultiheadAttention
from lezero.nn.containers import ModuleDict, ModuleList, ParameterDict, ParameterList, Sequential
from lezero.nn.conv import Conv1d, Conv2d, ConvTranspose2d
from lezero.nn.dropout import AlphaDropout, Dropout, Dropout1d, Dropout2d
from lezero.nn.linear import Bilinear, CosineSimilarity, Embedding, Identity, Linear, PairwiseDistance
from lezero.nn.loss import (
    BCELoss,
    BCEWithLogitsLoss,
    CosineEmbeddingLoss,
    CrossEntropyLoss,
    GaussianNLLLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MarginRankingLoss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
    TripletMarginLoss,
)
from lezero.nn.module import Module
from lezero.nn.normalization import (
    BatchNorm1d,
    BatchNorm2d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    LayerNorm,
    LocalResponseNorm,
    RMSNorm,
)
from lezero.nn.parameter import Buffer, Parameter
from lezero.nn.pooling import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AvgPool1d,
    AvgPool2d,
    MaxPool1d,
    MaxPool2d,
)
from lezero.nn.shape import (
    CircularPad1d,
    CircularPad2d,
    ConstantPad1d,
    ConstantPad2d,
    Flatten,
    ReflectionPad1d,
    ReflectionPad2d,
    ReplicationPad1d,
    ReplicationPad2d,
    Unflatten,
    ZeroPad1d,
    ZeroPad2d,
)

__all__ = [name for name in dir() if name[0].isupper() or name in ("functional", "init", "utils")]
