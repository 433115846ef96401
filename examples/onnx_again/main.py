"""An ONNX model that classifies white digits on black: fine-tuned on black digits on white, and exported again.

Run with ``python examples/onnx_again/main.py``. The first part creates a file that somebody might publish. The rest
uses only this file: it is loaded as a module, trained on a few labelled images, and exported with the same names. The
new file is evaluated by onnxruntime if it is installed, otherwise by the evaluator of ``onnx``. For comparison, a new
network is trained on the same few images.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import backburn as bb
from backburn import data, nn, optim, train
from backburn.nn.functional import cross_entropy

HERE = Path(__file__).parent


def network(width: int) -> nn.Sequential:
    """Two convolutions, each followed by a maximum over 2 x 2, and a linear layer."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, width), (width, 2 * width)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2 * width * 4, data.CLASSES))


def loss(model: nn.Module, batch: tuple[bb.Tensor, bb.Tensor]) -> bb.FloatTensor:
    """Cross-entropy."""
    images, labels = batch
    return cross_entropy(model(images), labels)


def trained(model: Any, images: np.ndarray, labels: np.ndarray, steps: int) -> Any:
    """Train a model for about ``steps`` steps, on batches of up to 32 images (n, 1, 8, 8)."""
    epochs = -(-steps * 32 // len(labels))

    def shuffled(epoch: int) -> Any:
        return data.batches(images, labels, batch_size=min(32, len(labels)), seed=0, epoch=epoch)

    return train.fit(model, loss, shuffled, optimizer=optim.AdamW(3e-3, weight_decay=0.01), epochs=epochs).model


def tuned(path: Path, images: np.ndarray, labels: np.ndarray, steps: int) -> Path:
    """Train a published file on more images; the result is written to a new file beside it."""
    model = bb.onnx.load(path, backend="autodiff(numpy)")
    model = trained(model, images, labels, steps)
    new = path.with_stem(f"{path.stem}-{len(labels)}")
    bb.onnx.export(model, new, bb.asarray(images[:2]), dynamic={"x": {0: "batch"}})
    return new


def logits(path: Path, images: np.ndarray) -> np.ndarray:
    """The outputs of a file, computed by onnxruntime or ``onnx``."""
    try:
        import onnxruntime
    except ImportError:
        from onnx.reference import ReferenceEvaluator

        return np.asarray(ReferenceEvaluator(str(path)).run(None, {"x": images})[0])
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": images})[0])


def draw(
    found: dict[str, list[float]], counts: Sequence[int], images: np.ndarray, titles: Sequence[str], path: str
) -> None:
    """Plot accuracies by the number of images, and digits that only the new file gets right, in both themes."""
    from matplotlib import pyplot

    for theme in ("light", "dark"):
        with pyplot.style.context(HERE.parent / f"{theme}.mplstyle"):
            figure = pyplot.figure()
            left, right = figure.subfigures(1, 2, width_ratios=(3, 2))
            axis = left.subplots()
            for name, values in found.items():
                axis.plot(counts, values, "--" if name == "the file as it was" else "o-", label=name)
            axis.set(xlabel="labelled black digits", ylabel="accuracy on others", xscale="log", ylim=(0, 1))
            axis.set_xticks(counts, [str(n) for n in counts], minor=False)
            axis.minorticks_off()
            axis.legend(frameon=False)
            for cell, image, title in zip(right.subplots(2, 4).flat, images, titles, strict=False):
                cell.axis("off")
                cell.imshow(image, cmap="gray", vmin=0.0, vmax=1.0)
                cell.set_title(title, fontsize=9)
            figure.savefig(f"{path}-{theme}.svg", metadata={"Date": None})
            pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Fine-tune with each number of images; returns the accuracies for the largest, and the error of the logits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller network, fewer steps, one number of images")
    parser.add_argument("--plot", metavar="PATH", help="write PATH-light.svg and PATH-dark.svg")
    options = parser.parse_args(arguments)
    counts, steps, width = ((100,), 100, 8) if options.quick else ((25, 50, 100, 200, 400), 300, 16)

    (images, labels), (unseen, answers) = data.hold_out(*data.load_digits())
    white, black, shown = images[:, None], 1.0 - images[:, None], 1.0 - unseen[:, None]
    found: dict[str, list[float]] = {"the file, fine-tuned": [], "a new network": [], "the file as it was": []}
    with tempfile.TemporaryDirectory() as folder:
        published = Path(folder) / "digits.onnx"
        bb.random.seed(0)
        made = trained(network(width), white, labels, 2 * steps)
        bb.onnx.export(made, published, bb.asarray(white[:2]), dynamic={"x": {0: "batch"}})
        before = logits(published, shown).argmax(1)
        print(bb.onnx.load(published).report)
        for count in counts:
            new = tuned(published, black[:count], labels[:count], steps)
            after = logits(new, shown)
            with bb.no_grad():
                away = float(np.abs(np.asarray(bb.onnx.load(new, backend="numpy")(shown)) - after).max())
            bb.random.seed(0)
            fresh = trained(network(width), black[:count], labels[:count], steps)
            others = np.asarray(train.predict(fresh, [shown])).argmax(1)
            for values, digits in zip(found.values(), (after.argmax(1), others, before), strict=True):
                values.append(float((digits == answers).mean()))
            print(f"{count:3} images: " + ", ".join(f"{values[-1]:.1%} {name}" for name, values in found.items()))
    print(f"largest difference of the logits from backburn's: {away:.1e}")
    if options.plot:
        mended = np.flatnonzero((before != answers) & (after.argmax(1) == answers))[:8]
        titles = [f"{before[i]} \N{RIGHTWARDS ARROW} {answers[i]}" for i in mended]
        draw(found, counts, shown[mended, 0], titles, options.plot)
    return {name: values[-1] for name, values in found.items()} | {"away": away}


if __name__ == "__main__":
    main()
