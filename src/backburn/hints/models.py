"""Hints for names of models and training in Flax, optax and PyTorch, by module.

Each hint holds for its module only: ``partition`` and ``clip`` mean something else elsewhere. ``x`` and ``y`` are
operands in their order; in schedules ``n`` is the number of steps.
"""

from __future__ import annotations

_AVERAGE = "bb.optim.Average(decay=0.999), whose update(model) follows each step"
_GROUPS = "bb.optim.Groups({'*.bias': bb.optim.SGD(0.1), '*': bb.optim.AdamW()}), optimizers by patterns of paths"

#: Names of ``nn``.
NN = {
    **dict.fromkeys(
        ("MultiHeadDotProductAttention", "SelfAttention"),
        "bb.nn.MultiheadAttention(embed_dim, num_heads), called with queries, keys and values",
    ),
    "Dense": "bb.nn.Linear(in_features, out_features)",
    "Embed": "bb.nn.Embedding(num_embeddings, embedding_dim)",
    "OptimizedLSTMCell": "bb.nn.LSTMCell(input_size, hidden_size)",
    "RReLU": "bb.where(x < 0.0, x * bb.random.uniform(x.shape, low=1 / 8, high=1 / 3), x), in training mode",
    "utils": "bb.optim.clip_grad_norm(gradients, 1.0), bb.trees.ravel(model), bb.nn.WeightNorm(layer)",
    "SimpleCell": "bb.nn.RNNCell(input_size, hidden_size)",
}

#: Names of ``nn.functional``.
FUNCTIONAL = {
    **dict.fromkeys(
        ("softmax_cross_entropy", "softmax_cross_entropy_with_integer_labels"),
        "bb.nn.functional.cross_entropy(x, targets, reduction='none')",
    ),
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
    "squared_error": "(x - y) ** 2",
    "squareplus": "0.5 * (x + bb.sqrt(x**2 + 4.0))",
    "standardize": "bb.nn.functional.layer_norm(x)",
}

#: Names of ``nn.init``.
INIT = {
    **{f"glorot_{name}": f"bb.nn.init.xavier_{name}(shape)" for name in ("normal", "uniform")},
    **{f"he_{name}": f"bb.nn.init.kaiming_{name}(shape)" for name in ("normal", "uniform")},
    "lecun_normal": "bb.nn.init.kaiming_normal(shape, nonlinearity='linear')",
    "lecun_uniform": "bb.nn.init.kaiming_uniform(shape, nonlinearity='linear')",
    "variance_scaling": "bb.nn.init.normal(shape, std=(scale / bb.nn.init.fans(shape)[0]) ** 0.5)",
}

#: Names of ``optim``.
OPTIM = {
    **dict.fromkeys(("AveragedModel", "EMA", "ModelEma", "ema", "incremental_update"), _AVERAGE),
    "swa_utils": "bb.optim.Average(None), whose update(model) follows each step",
    **dict.fromkeys(("masked", "multi_transform", "partition"), _GROUPS),
    "MultiSteps": "bb.optim.scale(bb.optim.add(first, second), 1 / 2) before the step",
    "SparseAdam": "bb.optim.Adam(0.001), whose gradients are dense",
    "amsgrad": "bb.optim.Adam(0.001, amsgrad=True)",
    "apply_updates": "optimizer.step(model, gradients), which puts new tensors into the model",
    "chain": "what changes gradients before optimizer.step(model, gradients), such as bb.optim.clip_grad_norm",
    "clip": "bb.optim.clip_grad_value(gradients, 1.0)",
    "clip_by_global_norm": "gradients, norm = bb.optim.clip_grad_norm(gradients, 1.0)",
    "set_to_zero": "model.freeze('encoder')",
    "sign_sgd": "bb.optim.Lion(0.001, betas=(0.0, 0.0))",
}

#: Names of ``optim.schedules``.
SCHEDULES = {
    **dict.fromkeys(("Constant", "constant_schedule"), "the number itself, as in bb.optim.SGD(0.1)"),
    **dict.fromkeys(("CosineDecay", "cosine_decay_schedule"), "bb.optim.schedules.Cosine(0.1, 1000)"),
    "ExponentialDecay": "bb.optim.schedules.Exponential(0.1, 0.9, step_size=1000)",
    "cosine_onecycle_schedule": "bb.optim.schedules.OneCycle(0.1, 1000)",
    "exponential_decay": "bb.optim.schedules.Exponential(0.1, 0.9, step_size=1000), or Step for a staircase",
    "join_schedules": "a function: lambda n: first(n) if n < 100 else second(n - 100)",
    "linear_schedule": "bb.optim.schedules.Linear(0.1, 0.0, 1000)",
    "piecewise_constant_schedule": "bb.optim.schedules.MultiStep(0.1, (30, 80), gamma=0.5)",
    "polynomial_schedule": "bb.optim.schedules.Polynomial(0.1, 1000, power=2.0)",
    "sgdr_schedule": "bb.optim.schedules.CosineWarmRestarts(0.1, 1000)",
    "warmup_cosine_decay_schedule": "bb.optim.schedules.Warmup(100, bb.optim.schedules.Cosine(0.1, 900))",
}

_LOAD_WEIGHTS = "bb.io.load_weights(model, path)"
_SAVE_WEIGHTS = "bb.io.save_weights(model, path)"
#: Names of ``io``.
IO = {
    **dict.fromkeys(("from_pretrained", "load_checkpoint", "load_file", "load_gguf"), _LOAD_WEIGHTS),
    **dict.fromkeys(("load_pytorch", "load_safetensors", "load_torch", "safe_open"), _LOAD_WEIGHTS),
    **dict.fromkeys(("save_file", "save_pretrained", "save_safetensors"), _SAVE_WEIGHTS),
    "save_checkpoint": "bb.io.save_state(path, tree), of a whole run",
}
