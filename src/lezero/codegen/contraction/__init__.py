"""Matrix products and convolutions: micro-kernels, packing, epilogues and plans."""

from lezero.codegen.contraction.conv import plan_conv_forward, plan_conv_input_grad
from lezero.codegen.contraction.epilogue import Epilogue, Prologue
from lezero.codegen.contraction.matmul import plan_matmul
from lezero.codegen.contraction.spec import ConvSpec, MatmulSpec
from lezero.codegen.contraction.weight_grad import plan_conv_weight_grad

__all__ = [
    "ConvSpec", "Epilogue", "MatmulSpec", "Prologue", "plan_conv_forward", "plan_conv_input_grad", "plan_conv_weight_grad",
    "plan_matmul",
]  # fmt: skip
