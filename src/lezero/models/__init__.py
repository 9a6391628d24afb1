"""Models, with the parameter names published weights use."""

from lezero.misspelt import ARGUMENTS, suggest_names
from lezero.models import names as names
from lezero.models.bert import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    bert_base,
    bert_base_for_masked_lm,
    bert_base_for_sequence_classification,
)
from lezero.models.gpt2 import GPT2Config, GPT2LMHeadModel, GPT2Model, gpt2
from lezero.models.lenet import LeNet5, lenet5
from lezero.models.mobilenet import MobileNetV2, mobilenet_v2
from lezero.models.resnet import ResNet, resnet18, resnet34, resnet50, resnet101
from lezero.models.unet import UNet, unet
from lezero.models.vgg import VGG, vgg16, vgg16_bn
from lezero.models.vit import VisionTransformer, vit_b_16

_PUBLISHED = "ResNet18 ResNet34 ResNet50 ResNet101 MobileNet_V2 VGG16 VGG16_BN ViT_B_16".split()

__all__ = [
    "VGG",
    "BertConfig",
    "BertForMaskedLM",
    "BertForSequenceClassification",
    "BertModel",
    "GPT2Config",
    "GPT2LMHeadModel",
    "GPT2Model",
    "LeNet5",
    "MobileNetV2",
    "ResNet",
    "UNet",
    "VisionTransformer",
    "bert_base",
    "bert_base_for_masked_lm",
    "bert_base_for_sequence_classification",
    "gpt2",
    "lenet5",
    "mobilenet_v2",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "unet",
    "vgg16",
    "vgg16_bn",
    "vit_b_16",
]

suggest_names(__name__, {f"{network}_Weights": ARGUMENTS[__name__]["weights"] for network in _PUBLISHED})
