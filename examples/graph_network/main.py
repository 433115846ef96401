"""A graph network: 1,797 digits, a few of them labelled, and a graph that connects similar digits.

Run with ``python examples/graph_network/main.py``. Graph convolutions after Kipf and Welling, "Semi-supervised
classification with graph convolutional networks" (2017), with their sizes and rates: indexing sends the features of the
nodes along the edges, and ``index_add`` sums them at the receivers. For comparison, the same network is trained without
the edges.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import backburn as bb
from backburn import data, nn, optim, train
from backburn.nn.functional import cross_entropy

HERE = Path(__file__).parent
Graph = Mapping[str, bb.Tensor]


def graph_of(features: np.ndarray, neighbours: int) -> dict[str, np.ndarray]:
    """Edges in both directions between each node and its nearest, with loops, weighted by ``1 / sqrt(d_i d_j)``."""
    squares = (features**2).sum(1)
    distances = squares[:, None] + squares - 2.0 * features @ features.T
    nearest = np.argsort(distances, axis=1, kind="stable")[:, : neighbours + 1]
    adjacent = np.zeros(distances.shape, bool)
    np.put_along_axis(adjacent, nearest, True, axis=1)
    np.fill_diagonal(adjacent, True)
    senders, receivers = np.nonzero(adjacent | adjacent.T)
    degrees = np.bincount(receivers)
    weights = 1.0 / np.sqrt(degrees[senders] * degrees[receivers])
    return {"senders": senders, "receivers": receivers, "weights": weights[:, None]}


class GraphConvolution(nn.Module):
    """A linear layer, and the weighted sum of its results over each node's neighbours."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.linear = nn.Linear(inputs, outputs, bias=False)
        self.bias = nn.parameter(bb.zeros(outputs))

    def forward(self, x: bb.Tensor, graph: Graph) -> bb.Tensor:
        """New features (nodes, outputs) of nodes with features (nodes, inputs)."""
        x = self.linear(x)
        messages = x[graph["senders"]] * graph["weights"]
        return bb.zeros_like(x).index_add(graph["receivers"], messages, axis=0) + self.bias


class GCN(nn.Module):
    """Two graph convolutions, each after dropout."""

    def __init__(self, inputs: int, hidden: int, classes: int) -> None:
        self.first, self.second = GraphConvolution(inputs, hidden), GraphConvolution(hidden, classes)
        self.dropout = nn.Dropout(0.5)

    def forward(self, graph: Graph) -> bb.Tensor:
        """Logits (nodes, classes)."""
        hidden = bb.relu(self.first(self.dropout(graph["features"]), graph))
        return self.second(self.dropout(hidden), graph)


def loss(model: GCN, graph: Graph) -> tuple[bb.FloatTensor, dict[str, bb.Tensor]]:
    """Cross-entropy of the labelled nodes, and the fraction of the others that are classified correctly."""
    logits, labels, known, others = model(graph), graph["labels"], graph["known"], graph["others"]
    right = logits[others].argmax(axis=1) == labels[others]
    return cross_entropy(logits[known], labels[known]), {"accuracy": right.mean()}


def accuracy(graph: Mapping[str, Any], each: int, epochs: int) -> tuple[float, GCN]:
    """The accuracy on unlabelled nodes, with ``each`` labels per class, and the model."""
    labels = graph["labels"]
    order = np.random.default_rng(each).permutation(len(labels))
    known = np.concatenate([order[labels[order] == digit][:each] for digit in range(data.CLASSES)])
    whole = {**graph, "known": known, "others": np.setdiff1d(order, known)}
    bb.random.seed(0)
    model = GCN(graph["features"].shape[1], 64, data.CLASSES)
    run = train.fit(
        model, loss, [whole], validation=[whole], optimizer=optim.Adam(0.01, weight_decay=5e-4), epochs=epochs
    )
    return run.history[-1]["validation/accuracy"], model


def draw(
    found: dict[str, list[float]], counts: Sequence[int], hidden: np.ndarray, labels: np.ndarray, path: str
) -> None:
    """Plot accuracies by the number of labels, and the logits in a plane, for light and dark pages."""
    from matplotlib import pyplot

    axes = np.linalg.svd(hidden - hidden.mean(0), full_matrices=False)[2][:2]
    for theme in ("light", "dark"):
        with pyplot.style.context(HERE.parent / f"{theme}.mplstyle"):
            figure, (left, right) = pyplot.subplots(1, 2)
            for name, values in found.items():
                left.plot(counts, values, "o-", label=name)
            left.set(xlabel="labels of each digit", ylabel="accuracy on the others", xscale="log")
            left.set_xticks(counts, [str(n) for n in counts], minor=False)
            left.minorticks_off()
            left.legend(frameon=False)
            points = right.scatter(
                *(hidden @ axes.T).T, c=labels, s=5, cmap="tab10", vmin=-0.5, vmax=9.5, rasterized=True
            )
            figure.colorbar(points, ax=right, ticks=range(10), label="digit")
            right.set(xticks=[], yticks=[], title="logits, principal components")
            figure.savefig(f"{path}-{theme}.svg", metadata={"Date": None})
            pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train with and without the edges; returns both accuracies for the largest number of labels."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="600 digits, fewer epochs, one number of labels")
    parser.add_argument("--plot", metavar="PATH", help="write PATH-light.svg and PATH-dark.svg")
    options = parser.parse_args(arguments)
    counts, epochs, nodes = ((2,), 60, 600) if options.quick else ((1, 2, 5, 10, 20), 200, 1797)

    images, labels = data.load_digits()
    nodes_of = {"features": images[:nodes].reshape(nodes, -1), "labels": labels[:nodes]}
    graphs = {
        "with the graph": nodes_of | graph_of(nodes_of["features"], neighbours=8),
        "without edges": nodes_of | graph_of(nodes_of["features"], neighbours=0),
    }
    print(f"{nodes} nodes, {len(graphs['with the graph']['senders']):,} edges")
    found: dict[str, list[float]] = {name: [] for name in graphs}
    for each in counts:
        for name, graph in graphs.items():
            value, model = accuracy(graph, each, epochs)
            found[name].append(value)
        print(f"{each:2} labels of each digit: " + ", ".join(f"{x[-1]:.1%} {name}" for name, x in found.items()))
    if options.plot:
        whole = {name: bb.asarray(x) for name, x in graphs["with the graph"].items()}
        whole["features"], whole["weights"] = (whole[n].astype("float32") for n in ("features", "weights"))
        with bb.no_grad():
            draw(found, counts, np.asarray(model(whole)), labels[:nodes], options.plot)
    return {name: values[-1] for name, values in found.items()}


if __name__ == "__main__":
    main()
