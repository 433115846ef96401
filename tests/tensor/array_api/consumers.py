"""Compare functions of SciPy and scikit-learn on tensors with the same on NumPy arrays; print the errors as JSON.

Run by ``tests/tensor/test_array_api.py`` in a separate interpreter, since SciPy reads SCIPY_ARRAY_API on import.
"""

import json
import sys

import numpy as np

import backburn as bb

X = np.random.default_rng(0).uniform(0.5, 2.0, (6, 4))

# Functions of the groups named GRADIENTS use only the array's namespace, so gradients flow.
SCIPY_GRADIENTS = {
    "stats.gmean": lambda s, x: s.stats.gmean(x),
    "stats.hmean": lambda s, x: s.stats.hmean(x),
    "stats.pmean": lambda s, x: s.stats.pmean(x, 2.5),
    "stats.moment": lambda s, x: s.stats.moment(x, order=3),
    "stats.skew": lambda s, x: s.stats.skew(x),
    "stats.kurtosis": lambda s, x: s.stats.kurtosis(x),
    "stats.sem": lambda s, x: s.stats.sem(x),
    "stats.directional_stats": lambda s, x: s.stats.directional_stats(x).mean_direction,
    "special.softmax": lambda s, x: s.special.softmax(x, axis=0),
    "integrate.trapezoid": lambda s, x: s.integrate.trapezoid(x),
    "integrate.cumulative_trapezoid": lambda s, x: s.integrate.cumulative_trapezoid(x),
    "optimize.rosen": lambda s, x: s.optimize.rosen(x),
}
SCIPY = {
    # The first two compute p-values with NumPy, to which a tensor that requires a gradient does not convert.
    "stats.power_divergence": lambda s, x: s.stats.power_divergence(x).statistic,
    "stats.ttest_1samp": lambda s, x: s.stats.ttest_1samp(x, 1.0).statistic,
    "stats.entropy": lambda s, x: s.stats.entropy(x),
    "special.gammaln": lambda s, x: s.special.gammaln(x),
    "special.betainc": lambda s, x: s.special.betainc(x, x, x / 3),
    "stats.rankdata": lambda s, x: s.stats.rankdata(x),
    "ndimage.gaussian_filter": lambda s, x: s.ndimage.gaussian_filter(x, 1.0),
    "cluster.hierarchy.linkage": lambda s, x: s.cluster.hierarchy.linkage(x),
    "signal.lfilter": lambda s, x: s.signal.lfilter(x[0, :2], x[1, :2], x[:, 0]),
}
SKLEARN_GRADIENTS = {
    "metrics.pairwise.linear_kernel": lambda s, x: s.metrics.pairwise.linear_kernel(x),
    "metrics.pairwise.polynomial_kernel": lambda s, x: s.metrics.pairwise.polynomial_kernel(x),
    "metrics.pairwise.sigmoid_kernel": lambda s, x: s.metrics.pairwise.sigmoid_kernel(x),
}
SKLEARN = {
    "metrics.mean_squared_error": lambda s, x: s.metrics.mean_squared_error(x[:, 0], x[:, 1]),
    "metrics.mean_absolute_error": lambda s, x: s.metrics.mean_absolute_error(x[:, 0], x[:, 1]),
    "metrics.mean_tweedie_deviance": lambda s, x: s.metrics.mean_tweedie_deviance(x[:, 0], x[:, 1]),
    "metrics.max_error": lambda s, x: s.metrics.max_error(x[:, 0], x[:, 1]),
    "decomposition.PCA": lambda s, x: s.decomposition.PCA(2, svd_solver="full").fit_transform(x),
    "linear_model.RidgeCV": lambda s, x: s.linear_model.RidgeCV().fit(x, x[:, 0]).coef_,
    "model_selection.train_test_split": lambda s, x: s.model_selection.train_test_split(x, random_state=0)[0],
}


def host(value):
    """Return ``value`` as a NumPy array."""
    return value.numpy() if isinstance(value, bb.Tensor) else np.asarray(value)


def outcome(module, function, with_gradient):
    """Return the errors of a function's values, and of its gradient against central differences."""
    x = bb.asarray(X, backend="autodiff(numpy)")
    if with_gradient:
        x = x.require_grad()
    got, expected = function(module, x), np.asarray(function(module, X))
    found = {"shape": host(got).shape == expected.shape, "value": float(np.abs(host(got) - expected).max())}
    if with_gradient:
        weights = np.random.default_rng(1).standard_normal(expected.shape)
        step = 1e-6 * np.random.default_rng(2).standard_normal(X.shape)
        numeric = (weights * (function(module, X + step) - function(module, X - step))).sum() / 2e-6
        grad = x.grad((got * bb.asarray(weights, backend=x.backend)).sum().backward()).numpy()  # type: ignore[union-attr]
        found["size"] = float(abs(numeric))
        found["gradient"] = float(abs((grad * step).sum() / 1e-6 - numeric) / (1 + abs(numeric)))
        found["kind"] = isinstance(got, bb.FloatTensor)
    return found


def main(library):
    if library == "scipy":
        import scipy as module
        import scipy.cluster
        import scipy.ndimage
        import scipy.signal
        import scipy.stats  # noqa: F401

        groups = (SCIPY_GRADIENTS, True), (SCIPY, False)
    else:
        import sklearn as module
        import sklearn.decomposition
        import sklearn.linear_model
        import sklearn.metrics
        import sklearn.model_selection

        sklearn.set_config(array_api_dispatch=True)
        groups = (SKLEARN_GRADIENTS, True), (SKLEARN, False)
    print(json.dumps({n: outcome(module, f, gradient) for group, gradient in groups for n, f in group.items()}))


if __name__ == "__main__":
    main(sys.argv[1])
