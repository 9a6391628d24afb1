"""What to do about names of ``torch`` that are not there."""

from __future__ import annotations

from importlib import import_module

_LINEAR = "lz.linalg has decompositions, solvers, norms and determinants; numpy.linalg works on x.numpy() where no gradient is needed"
_DENSE = "all tensors are dense"
_QUANTIZED = "quantised tensors and layers are not there yet; lz.float16 and lz.bfloat16 are the small dtypes"
_RECURRENT = "lz.nn.RNN, lz.nn.LSTM and lz.nn.GRU are the layers, and lz.nn.LSTMCell and the like their cells"
_DEVICES = "lz.device.devices() lists the devices of the backend in use, and .to(device) moves there"
_STORAGE = "memory is not written to from outside; x.numpy() gives the values without a copy"
_LAYOUT = "how values lie in memory is chosen for each operation; leave it out"
_DETERMINISM = "nothing has to be switched; lz.manual_seed(seed) starts the random numbers"
_SEEDS = "lz.manual_seed(seed) starts the default stream of random numbers, and lz.Generator() is one of one's own"
_COMPILED = "every recorded step is compiled, and lz.jit(function) captures one so that it is recorded only once"
_FOURIER = "lz.fft has Fourier transforms, and lz.stft those of windows"
_EXPORT = "lz.save(model.state_dict(), path) keeps what was learnt, and lz.export.to_onnx writes what is computed"
_AUTOCAST = "lz.autocast and what is in lz.amp choose and tell the precision"
_BRANCHES = "Python's own if and loops decide by values outside of lz.jit, and lz.where by element anywhere"
_PROCESSES = "lz.data.DataLoader(dataset, num_workers=n) loads in processes of its own"
_THREADS = "lz.set_num_threads sets how many threads there are, for everything"
_VISIBLE = "lz.explain(function, *inputs) shows the graph that is recorded; programs do not edit it"


def _tensors(kinds: str) -> dict[str, str]:
    pairs = (pair.split("=") for pair in kinds.split())
    return {f"{kind}Tensor": f"lz.tensor(data, dtype=lz.{dtype}) makes tensors" for kind, dtype in pairs}


NAMES = {
    **dict.fromkeys(
        "eig lobpcg lstsq matrix_rank nuclear_norm pca_lowrank solve svd_lowrank symeig".split(),
        _LINEAR,
    ),
    **dict.fromkeys(
        """dsmm hsmm hspmm layout saddmm smm sparse sparse_coo sparse_coo_tensor sparse_csr sparse_csr_tensor spmm sspaddmm
        strided""".split(),
        _DENSE,
    ),
    **dict.fromkeys(
        """ao dequantize fake_quantize_per_channel_affine fake_quantize_per_tensor_affine per_channel_affine per_tensor_affine
        qint32 qint8 quantization quantize_per_channel quantize_per_tensor quint8""".split(),
        _QUANTIZED,
    ),
    **dict.fromkeys("gru gru_cell lstm lstm_cell rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell".split(), _RECURRENT),
    **dict.fromkeys(
        """Event Stream accelerator cpu get_default_device get_device get_device_module is_vulkan_available mps mtia
        xpu""".split(),
        _DEVICES,
    ),
    **dict.fromkeys(
        "BoolStorage ByteStorage FloatStorage LongStorage Storage TypedStorage UntypedStorage is_storage storage".split(),
        _STORAGE,
    ),
    **dict.fromkeys(
        "channels_last channels_last_3d contiguous_format jagged memory_format preserve_format".split(), _LAYOUT
    ),
    **dict.fromkeys(
        """are_deterministic_algorithms_enabled get_deterministic_debug_mode set_deterministic_debug_mode
        use_deterministic_algorithms""".split(),
        _DETERMINISM,
    ),
    **dict.fromkeys("default_generator initial_seed random".split(), _SEEDS),
    **dict.fromkeys("compile compiler".split(), _COMPILED),
    **dict.fromkeys("signal".split(), _FOURIER),
    **dict.fromkeys("package".split(), _EXPORT),
    **dict.fromkeys(
        """autocast_decrement_nesting autocast_increment_nesting clear_autocast_cache get_autocast_cpu_dtype
        get_autocast_gpu_dtype is_autocast_cpu_enabled set_autocast_cpu_dtype set_autocast_dtype set_autocast_enabled""".split(),
        _AUTOCAST,
    ),
    **dict.fromkeys("cond while_loop".split(), _BRANCHES),
    **dict.fromkeys("fork futures multiprocessing wait".split(), _PROCESSES),
    **dict.fromkeys("get_num_interop_threads init_num_threads set_num_interop_threads".split(), _THREADS),
    **dict.fromkeys("Graph fx library overrides".split(), _VISIBLE),
    **_tensors(
        "BFloat16=bfloat16 Bool=bool Byte=uint8 Char=int8 Double=float64 Float=float32 Half=float16 Int=int32 Long=int64 Short=int16"
    ),
    **dict.fromkeys(
        "chalf complex32 float8_e4m3fn float8_e5m2 int1 int2 int4 uint1 uint2 uint4".split(),
        "numbers have 8 bits or more, and floating-point ones 16 or more (lz.float16, lz.bfloat16)",
    ),
    "OutOfMemoryError": "a MemoryError is raised",
    "ScriptModule": _COMPILED,
    "Size": "the shape of a tensor is a tuple",
    "binomial": "lz.bernoulli draws single trials, whose sum over a dimension is one",
    "can_cast": "lz.promote_types(a, b) is the dtype that holds both",
    "distributed": "training on several machines is not there yet",
    "distributions": "there are no distributions yet; lz.normal, lz.rand, lz.bernoulli and lz.multinomial draw numbers",
    "embedding": "lz.nn.functional.embedding(indices, weight) looks rows up",
    "fill": "lz.full_like(x, value) makes a tensor, and x.fill_(value) fills one",
    "frobenius_norm": "x.norm() is the same",
    "from_file": "lz.load and lz.io.load_safetensors read files, and lz.tensor(numpy.fromfile(path)) one of plain numbers",
    "frombuffer": "lz.tensor(numpy.frombuffer(data, dtype)) is the same",
    "func": "lz.grad, lz.vjp and lz.value_and_grad take gradients of functions",
    "hub": "networks are in lz.models, and lz.io.load_pth reads published weights",
    "is_distributed": "training on several machines is not there yet",
    "masked": "lz.where and x.masked_fill(mask, value) work with masks",
    "nested": "all tensors have one shape; lz.nn.functional.pad makes sequences of one length",
    "pdist": "lz.cdist(x, x) has the distances of all pairs",
    "poisson": "it is not there yet; lz.tensor(numpy.random.poisson(x.numpy())) draws such numbers",
    "range": "lz.arange(start, end + step, step) holds the end, too",
    "row_stack": "lz.vstack is the same",
    "set_anomaly_enabled": "lz.debug.check_numerics() finds where a NaN comes from",
    "set_default_device": "give device= where tensors are made",
    "set_default_tensor_type": "lz.set_default_dtype(dtype) sets the dtype of tensors made of Python floats",
    "testing": "numpy.testing.assert_allclose takes tensors",
    "to_dlpack": "what takes DLPack takes tensors as they are, as numpy.from_dlpack(x) does",
    "utils": "what loads data is in lezero.data, what helps with modules in lezero.nn.utils, and lz.checkpoint keeps less for gradients",
    "version": "it is lz.__version__",
    "vmap": "functions of batches are written with operations that broadcast",
}


def advice(name: str) -> str:
    """What to do about a name, or nothing."""
    if name in NAMES:
        return NAMES[name]
    of_layers = import_module("lezero.nn.absent")
    return of_layers.FUNCTIONS.get(name) or of_layers.LAYERS.get(name, "")
