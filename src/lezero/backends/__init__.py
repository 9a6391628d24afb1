"""What computes: one package for each backend."""

from lezero.misspelt import suggest_names

_DEVICES = "lz.device.devices() lists the devices of the backend in use"
_SETTINGS = "nothing has to be switched; lz.device lists backends and their settings"

suggest_names(
    __name__,
    {
        **dict.fromkeys("cuda mps xnnpack".split(), _DEVICES),
        **dict.fromkeys("cudnn mkl mkldnn openmp opt_einsum".split(), _SETTINGS),
    },
)
