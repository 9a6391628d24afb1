"""What programs written for PyTorch ask of a tensor's place and memory, and names that mean nothing here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from lezero.tensor.core import Core

if TYPE_CHECKING:
    from lezero.tensor import Tensor


class Elsewhere:
    """An attribute that is not there, and says what to use instead."""

    def __init__(self, name: str, advice: str):
        self.name, self.advice = name, advice

    def __get__(self, instance: Any, owner: type) -> Any:
        raise AttributeError(f"{owner.__name__!r} has no attribute {self.name!r}: {self.advice}")


def _never(doc: str) -> property:
    answer = property(lambda self: False)
    answer.__doc__ = doc
    return answer


class Names(Core):
    """Properties of place and memory; to the user every tensor lies in row-major order."""

    is_cpu = property(lambda self: self.device.type == "cpu", doc="Whether it is in the memory of the processor.")
    is_cuda = property(lambda self: self.device.type == "cuda", doc="Whether it is in the memory of an NVIDIA GPU.")
    is_meta = _never("Never: all tensors have values.")
    is_sparse = _never("Never: all tensors are dense.")
    is_quantized = _never("Never: there are no quantized dtypes.")
    is_nested = _never("Never: all tensors have one shape.")
    is_sparse_csr = _never("Never: all tensors are dense.")
    is_mkldnn = _never("Never: layouts in memory are the schedule's.")
    is_ipu = is_maia = is_mps = is_mtia = is_vulkan = is_xla = is_xpu = _never("Never: there is no such device.")

    name = property(lambda self: None, doc="None: no value has a name.")
    grad_dtype = property(lambda self: self.dtype, doc="The dtype of gradients: the tensor's own.")

    def module_load(self, other: Tensor, assign: bool = False) -> Tensor:
        """What a module holds after `other` is loaded into this: `other`."""
        return other

    def get_device(self) -> int:
        """The number of the device, -1 for the CPU."""
        index = self.device.index
        return -1 if self.is_cpu else index or 0

    def stride(self, dim: int | None = None) -> Any:
        """How many elements lie between neighbours along each dimension (or along one)."""
        found = []
        step = 1
        for extent in reversed(self.shape):
            found.append(step)
            step = step * max(extent, 1)
        strides = tuple(reversed(found))
        return strides if dim is None else strides[dim]

    def storage_offset(self) -> int:
        """0: no tensor begins inside another."""
        return 0

    def contiguous(self, memory_format: Any = None) -> Self:
        """The tensor itself: to the user it is in row-major order."""
        return self

    def is_contiguous(self, memory_format: Any = None) -> bool:
        """True: to the user every tensor is in row-major order."""
        return True

    def is_nonzero(self) -> bool:
        """Whether the only element is not zero."""
        return bool(self.item())

    def is_same_size(self, other: Tensor) -> bool:
        """Whether the shapes are equal."""
        return tuple(self.shape) == tuple(other.shape)

    def is_pinned(self) -> bool:
        """False: no memory is pinned."""
        return False

    def is_conj(self) -> bool:
        """Never: ``conj()`` computes."""
        return False

    def is_neg(self) -> bool:
        """False: negation computes."""
        return False

    def is_inference(self) -> bool:
        """False: there is no inference mode for tensors to stay in."""
        return False

    def resolve_conj(self) -> Self:
        """The tensor itself: ``conj()`` computes."""
        return self

    def resolve_neg(self) -> Self:
        """The tensor itself: negation computes."""
        return self


_ELSEWHERE = {
    "resize_ resize_as_": "a tensor keeps its shape; x = x.reshape(...) or lz.nn.functional.pad make another",
    "as_strided as_strided_": "there are no strides to choose; use unfold, reshape, permute or indexing",
    "data_ptr storage untyped_storage set_": "memory is not written to from outside; x.numpy() gives the values without a copy",
    "apply_ map_ map2_": "functions of single elements cannot be compiled; use operations on whole tensors",
    "to_sparse to_dense coalesce indices values": "all tensors are dense",
    "eig symeig solve lstsq": "PyTorch has removed it; lz.linalg has eig, eigh, solve and lstsq",
    "index": "dimensions have positions and no names; x[...] and index_select take elements",
    "hash_tensor": "hashlib takes the bytes of x.numpy(); equal() and allclose() compare values",
    "cuda": "x.to(device) moves it; lz.device.devices() lists the devices there are",
    "pin_memory": "it is only needed for copies to a GPU; leave it out",
    "share_memory_": "the DataLoader's workers hand tensors over by themselves; leave it out",
    "register_post_accumulate_grad_hook": "register_hook is called with the gradient before it is accumulated",
}

for _names, _advice in _ELSEWHERE.items():
    for _name in _names.split():
        setattr(Names, _name, Elsewhere(_name, _advice))
