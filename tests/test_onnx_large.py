"""More than 2 GB of weights, which one protobuf message cannot hold, read and written.

Slow, and takes 5 GB of memory and 2.5 GB of disk: python -m pytest -m slow tests/test_onnx_large.py
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

ROWS, WIDTH = 9_000_000, 64  # 2.3 GB
ROUND = """if True:
    import resource, sys, numpy as np, lezero as lz, lezero.onnx, lezero.export
    source, target, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
    at = np.array([0, 5, rows - 1])
    model = lz.onnx.load(source).eval()
    with lz.no_grad():
        before = model(at).numpy().copy()
    lz.export.to_onnx(model, lz.tensor(at), target, input_names=["at"], output_names=["y"], verify=False)
    del model
    with lz.no_grad():
        again = lz.onnx.load(target).eval()(at).numpy()
    assert before[2, -1] == 7 and before[0, 0] == 3 and np.array_equal(before, again)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)
"""


@pytest.mark.slow
def test_more_than_two_gigabytes_in_and_out(tmp_path):
    helper = onnx.helper
    table = onnx.TensorProto(name="table", data_type=onnx.TensorProto.FLOAT, dims=[ROWS, WIDTH])
    table.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "table.bin"), ("offset", "0"), ("length", str(4 * ROWS * WIDTH))):
        table.external_data.add(key=key, value=value)
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "at"], ["y"])], "g",
        [helper.make_tensor_value_info("at", onnx.TensorProto.INT64, [3])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [3, WIDTH])], [table],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "m.onnx").write_bytes(model.SerializeToString())
    with (tmp_path / "in" / "table.bin").open("wb") as file:  # sparse: zeros but for its ends
        file.write(np.float32(3).tobytes())
        file.seek(4 * ROWS * WIDTH - 4)
        file.write(np.float32(7).tobytes())
    command = [sys.executable, "-c", ROUND, str(tmp_path / "in" / "m.onnx"), str(tmp_path / "m.onnx"), str(ROWS)]
    peak = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert (tmp_path / "m.onnx.data").stat().st_size >= 4 * ROWS * WIDTH
    assert peak < 2.2 * 4 * ROWS * WIDTH  # the weights, and once more what is written
    print(f"peak {peak / (4 * ROWS * WIDTH):.2f} times the weights")
