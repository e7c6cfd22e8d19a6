"""A policy as policy.onnx, for any runtime of ONNX."""

from typing import Any

import numpy as np

from fedpg.export.network import Layer, Network
from fedpg.extras import need

FILES = ("policy.onnx",)
OPSET = 17
IR_VERSION = 8
"""Of 2022: what runtimes since then can read."""
OURS = "theta."
"""What the names of the policy's tensors begin with, beside those of the graph's own."""


def to_onnx(network: Network, about: dict[str, str]) -> dict[str, bytes]:
    """The file. Input `observation` [n, F]; outputs `action`, and `logits` [n, A] or `mean` and `std` [n, A]."""
    need("onnx")
    from onnx import TensorProto, checker, helper, numpy_helper

    nodes, constants = [], {OURS + name: value for name, value in network.tensors.items()}

    def add(op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def dense(layer: Layer, x: str, output: str) -> str:
        inputs = [x, *(OURS + name for name in (layer.weight, layer.bias) if name)]
        if not layer.activation:
            return add("Gemm", inputs, output, transB=1)
        add("Gemm", inputs, f"{output}_sum", transB=1)
        return add({"relu": "Relu", "tanh": "Tanh"}[layer.activation], [f"{output}_sum"], output)

    x = "observation"
    for i, layer in enumerate(network.hidden):
        x = dense(layer, x, f"hidden{i}")
    kind = TensorProto.FLOAT
    size: list[str | int] = ["n", network.outputs]
    if network.discrete:
        dense(network.head, x, "logits")
        constants["start"] = np.array(network.actions.start, np.int64)
        add("ArgMax", ["logits"], "index", axis=1, keepdims=0)
        add("Add", ["index", "start"], "action")
        outputs = [
            helper.make_tensor_value_info("action", TensorProto.INT64, ["n"]),
            helper.make_tensor_value_info("logits", kind, size),
        ]
    else:
        dense(network.head, x, "mean")
        if network.std is None:
            add("Exp", [f"{OURS}log_std"], "one_std")
            add("Shape", ["mean"], "shape")
            add("Expand", ["one_std", "shape"], "std")
        else:
            constants |= {"least": np.array(-20, np.float32), "most": np.array(-2, np.float32)}
            add("Clip", [dense(network.std, x, "std_head"), "least", "most"], "std_clipped")
            add("Tanh", [add("Exp", ["std_clipped"], "std_exp")], "std")
        ends = ("centre", "half", "low", "high")
        constants |= {f"action_{name}": np.asarray(getattr(network.actions, name), np.float32) for name in ends}
        add("Mul", ["mean", "action_half"], "scaled")
        add("Add", ["scaled", "action_centre"], "moved")
        add("Max", ["moved", "action_low"], "above")
        wide = network.actions.dtype == np.float64
        add("Min", ["above", "action_high"], "within" if wide else "action")
        if wide:
            add("Cast", ["within"], "action", to=TensorProto.DOUBLE)
        outputs = [
            helper.make_tensor_value_info("action", TensorProto.DOUBLE if wide else kind, size),
            helper.make_tensor_value_info("mean", kind, size),
            helper.make_tensor_value_info("std", kind, size),
        ]
    graph = helper.make_graph(
        nodes,
        "policy",
        [helper.make_tensor_value_info("observation", kind, ["n", network.observations])],
        outputs,
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(
        graph, producer_name="fedpg", opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
    )
    helper.set_model_props(model, about)
    checker.check_model(model, full_check=True)
    return {"policy.onnx": model.SerializeToString(deterministic=True)}


def tensors_of(data: bytes) -> dict[str, np.ndarray]:
    """The policy's tensors in policy.onnx."""
    need("onnx")
    import onnx
    from onnx import numpy_helper

    model = onnx.load_model_from_string(data)
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in model.graph.initializer):
        raise ValueError("its tensors are in other files")  # which a stranger's file must not name
    named = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    return {name.removeprefix(OURS): value for name, value in named.items() if name.startswith(OURS)}
