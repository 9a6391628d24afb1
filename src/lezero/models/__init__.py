"""Models, with the parameter names published weights use."""

from lezero.misspelt import suggest_names
from lezero.models.lenet import LeNet5, lenet5
from lezero.models.resnet import ResNet, resnet18, resnet34, resnet50, resnet101

__all__ = ["LeNet5", "ResNet", "lenet5", "resnet18", "resnet34", "resnet50", "resnet101"]

suggest_names(__name__)
