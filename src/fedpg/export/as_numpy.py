"""A policy as policy.py and policy.npz: NumPy and nothing else."""

import io

import numpy as np

from fedpg.export.network import Layer, Network

FILES = ("policy.py", "policy.npz")


def to_numpy(network: Network) -> dict[str, bytes]:
    """The files, by their names."""
    tensors = dict(network.tensors)
    actions = network.actions
    if not network.discrete:
        tensors |= {f"action_{name}": np.asarray(getattr(actions, name)) for name in ("centre", "half", "low", "high")}
    arrays = io.BytesIO()
    np.savez(arrays, **tensors)  # type: ignore[arg-type]
    return {"policy.py": _source(network).encode(), "policy.npz": arrays.getvalue()}


def _source(network: Network) -> str:
    discrete = network.discrete
    made = "The logits [..., A]" if discrete else "Mean and std [..., A]"
    lines = [
        f'"""A policy for {network.task}: observations [..., {network.observations}] -> actions. It needs NumPy."""',
        "",
        "from pathlib import Path",
        "",
        "import numpy as np",
        "",
        'P = dict(np.load(Path(__file__).with_name("policy.npz")))',
        "",
        "",
        "def distribution(observation):",
        f'    """{made} of the policy."""',
        "    x = np.asarray(observation, np.float32)",
        *(f"    x = {_layer(layer)}" for layer in network.hidden),
    ]
    head = _layer(network.head)
    if discrete:
        lines += [f"    return {head}"]
        start = f" + {network.actions.start}" if network.actions.start else ""
        lines += _function("act(observation)", "greedy", f"return distribution(observation).argmax(-1){start}")
        lines += _function(
            "sample(observation, rng)",
            "random, by a numpy.random.Generator",
            "logits = distribution(observation)",
            f"return (logits + rng.gumbel(size=logits.shape)).argmax(-1){start}",
        )
    else:
        std = 'np.exp(P["log_std"])' if network.std is None else "np.tanh(np.exp(np.clip({}, -20, -2)))"
        lines += [f"    return {head}, {std.format(_layer(network.std)) if network.std else std}"]
        take = 'np.clip(P["action_centre"] + P["action_half"] * a, P["action_low"], P["action_high"])'
        lines += ["", "", "def to_task(a):", '    """From (-1, 1) to the range of the task."""']
        lines += [f"    return {take}.astype(np.{network.actions.dtype.name})"]
        lines += _function("act(observation)", "greedy", "return to_task(distribution(observation)[0])")
        lines += _function(
            "sample(observation, rng)",
            "random, by a numpy.random.Generator",
            "mean, std = distribution(observation)",
            "return to_task(mean + std * rng.standard_normal(mean.shape))",
        )
    return "\n".join(lines) + "\n"


def _function(signature: str, kind: str, *body: str) -> list[str]:
    return ["", "", f"def {signature}:", f'    """The action, {kind}."""', *(f"    {line}" for line in body)]


def _layer(layer: Layer) -> str:
    """One layer as an expression in x."""
    product = f'x @ P["{layer.weight}"].T' + (f' + P["{layer.bias}"]' if layer.bias else "")
    return {"relu": f"np.maximum({product}, 0)", "tanh": f"np.tanh({product})", "": product}[layer.activation]


def tensors_of(data: bytes) -> dict[str, np.ndarray]:
    """The policy's tensors in policy.npz; those of the actions' range are of the task, and come from it."""
    with np.load(io.BytesIO(data)) as file:
        return {name: file[name] for name in file.files if not name.startswith("action_")}
