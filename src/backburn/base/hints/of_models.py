"""Hints for names of models and their training, of Flax, optax and PyTorch, by the module where they are sought.

They are told in that module alone: ``partition`` and ``clip`` mean something else elsewhere. ``x`` and ``y`` are
operands in their order; in schedules ``n`` is the number of steps.
"""

from __future__ import annotations

_ATTENTION = "bb.nn.MultiHeadAttention(size, heads), called with queries, keys and values"
_AVERAGE = (
    "bb.trees.tree_map(lambda a, p: 0.99 * a + 0.01 * p.detach(), average, model) after each step, "
    "from average = copy.deepcopy(model).freeze() on"
)
_COSINE = "bb.optim.schedules.Cosine(0.1, 1000)"
_CROSS_ENTROPY = "bb.nn.functional.cross_entropy(x, targets, reduction='none')"
_GROUPS = "bb.optim.Groups({'*.bias': bb.optim.SGD(0.1), '*': bb.optim.AdamW()}), optimizers by patterns of paths"
_JOINED = "a function: lambda n: first(n) if n < 100 else second(n - 100)"
_NUMBER = "the number itself, as in bb.optim.SGD(0.1)"
_SGDR = "bb.optim.schedules.Restarts(0.1, 1000)"

#: Names of ``nn``.
NN = {
    "Dense": "bb.nn.Linear(inputs, outputs)",
    "Embed": "bb.nn.Embedding(count, size)",
    "MultiHeadDotProductAttention": _ATTENTION,
    "OptimizedLSTMCell": "bb.nn.LSTMCell(inputs, size)",
    "RReLU": "bb.where(x < 0.0, x * bb.random.uniform(x.shape, low=1 / 8, high=1 / 3), x), in training mode",
    "SelfAttention": _ATTENTION,
    "SimpleCell": "bb.nn.RNNCell(inputs, size)",
}

#: Names of ``nn.functional``.
FUNCTIONAL = {
    "clipped_relu": "bb.clip(x, 0.0, 20.0)",
    "cosine_distance": "1.0 - bb.nn.functional.cosine_similarity(x, y)",
    "dot_product_attention": "bb.nn.functional.scaled_dot_product_attention(query, key, value), heads before steps",
    "kl_divergence": "bb.sum(bb.nn.functional.kl_div_loss(x, y, reduction='none'), axis=-1)",
    "l2_loss": "0.5 * (x - y) ** 2",
    "log1mexp": "bb.where(x < 0.7, bb.log(-bb.expm1(-x)), bb.log1p(-bb.exp(-x)))",
    "log_cosh": "bb.logaddexp(x - y, y - x) - math.log(2.0)",
    "mean_absolute_error": "bb.nn.functional.l1_loss(x, y)",
    "mean_squared_error": "bb.nn.functional.mse_loss(x, y)",
    "relu_squared": "bb.relu(x) ** 2",
    "sigmoid_binary_cross_entropy": "bb.nn.functional.binary_cross_entropy_with_logits(x, y, reduction='none')",
    "sigmoid_focal_loss": "(1.0 - bb.exp(-c)) ** 2 * c, with "
    "c = bb.nn.functional.binary_cross_entropy_with_logits(x, y, reduction='none')",
    "softmax_cross_entropy": _CROSS_ENTROPY,
    "softmax_cross_entropy_with_integer_labels": _CROSS_ENTROPY,
    "squared_error": "(x - y) ** 2",
    "squareplus": "0.5 * (x + bb.sqrt(x**2 + 4.0))",
    "standardize": "bb.nn.functional.layer_norm(x)",
}

#: Names of ``nn.init``.
INIT = {
    "calculate_gain": "gain=2**0.5 for ReLU, which is the default of kaiming_normal, 5 / 3 for tanh",
    "glorot_normal": "bb.nn.init.xavier_normal(shape)",
    "glorot_uniform": "bb.nn.init.xavier_uniform(shape)",
    "he_normal": "bb.nn.init.kaiming_normal(shape)",
    "he_uniform": "bb.nn.init.kaiming_uniform(shape)",
    "lecun_normal": "bb.nn.init.kaiming_normal(shape, gain=1.0)",
    "lecun_uniform": "bb.nn.init.kaiming_uniform(shape, gain=1.0)",
    "variance_scaling": "bb.nn.init.kaiming_normal(shape, gain=scale**0.5)",
}

#: Names of ``optim``.
OPTIM = {
    "AveragedModel": _AVERAGE,
    "EMA": _AVERAGE,
    "MultiSteps": "bb.optim.scale(bb.optim.add(first, second), 1 / 2) before the step",
    "SparseAdam": "bb.optim.Adam(0.001), whose gradients are dense",
    "amsgrad": "bb.optim.Adam(0.001, amsgrad=True)",
    "apply_updates": "optimizer.step(model, gradients), which puts new tensors into the model",
    "chain": "what changes gradients before optimizer.step(model, gradients), such as bb.optim.clip_grad_norm",
    "clip": "bb.optim.clip_grad_value(gradients, 1.0)",
    "clip_by_global_norm": "gradients, norm = bb.optim.clip_grad_norm(gradients, 1.0)",
    "ema": _AVERAGE,
    "incremental_update": _AVERAGE,
    "masked": _GROUPS,
    "multi_transform": _GROUPS,
    "partition": _GROUPS,
    "set_to_zero": "model.freeze('encoder')",
    "sign_sgd": "bb.optim.Lion(0.001, betas=(0.0, 0.0))",
    "swa_utils": _AVERAGE,
}

#: Names of ``optim.schedules``.
SCHEDULES = {
    "Constant": _NUMBER,
    "CosineDecay": _COSINE,
    "ExponentialDecay": "bb.optim.schedules.Exponential(0.1, 0.9, every=1000)",
    "constant_schedule": _NUMBER,
    "cosine_decay_schedule": _COSINE,
    "cosine_onecycle_schedule": "bb.optim.schedules.OneCycle(0.1, 1000)",
    "exponential_decay": "bb.optim.schedules.Exponential(0.1, 0.9, every=1000), or Step for a staircase",
    "join_schedules": _JOINED,
    "linear_schedule": "bb.optim.schedules.Linear(0.1, 0.0, 1000)",
    "piecewise_constant_schedule": "bb.optim.schedules.MultiStep(0.1, 0.5, at=(30, 80))",
    "polynomial_schedule": "bb.optim.schedules.Polynomial(0.1, 1000, power=2.0)",
    "sgdr_schedule": _SGDR,
    "warmup_cosine_decay_schedule": "bb.optim.schedules.Warmup(100, bb.optim.schedules.Cosine(0.1, 900))",
}
