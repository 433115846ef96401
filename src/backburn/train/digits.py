"""The handwritten digits as a run of ``backburn train``: the functions that ``examples/digits.toml`` names.

The rest of the package only names these functions, as defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from backburn.data import CLASSES, Distortion, batches, distort, hold_out, load_digits
from backburn.data.order import generator
from backburn.nn import GELU, Dropout, Linear, Module, ReLU, Sequential, Sigmoid, SiLU, Tanh
from backburn.nn.functional import cross_entropy

#: The stream of random numbers for distortions; stream 0 is for the order.
DISTORTIONS = 1

Positive: TypeAlias = Annotated[int, Field(gt=0)]
Share: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
ActivationName: TypeAlias = Literal["relu", "gelu", "silu", "tanh", "sigmoid"]

ACTIVATIONS: dict[str, Callable[[], Module]] = {
    "relu": ReLU,
    "gelu": GELU,
    "silu": SiLU,
    "tanh": Tanh,
    "sigmoid": Sigmoid,
}


def network(hidden: list[Positive] = [128], activation: ActivationName = "relu", dropout: Share = 0.0) -> Sequential:  # noqa: B006
    """Linear layers of ``hidden`` units with activations and dropout between them, from pixels to a logit per class.

    >>> network([32]).num_parameters
    2410
    """
    images, _ = load_digits()
    layers: list[Module] = []
    width = images[0].size
    for units in hidden:
        layers += [Linear(width, units), ACTIVATIONS[activation]()]
        if dropout:
            layers.append(Dropout(dropout))
        width = units
    return Sequential(*layers, Linear(width, CLASSES))


def data(
    name: Literal["digits"] = "digits",
    validation: Annotated[float, Field(ge=0, le=0.5)] = 0.0,
    distort: Distortion = Distortion(),  # noqa: B008 - it cannot be changed
    batch_size: Positive = 64,
    seed: Annotated[int, Field(ge=0)] = 0,
) -> dict[str, Any]:
    """Batches of distorted training images, and the held-out fifth, on which each epoch is evaluated.

    ``validation`` is the share of the training images, taken from their end, on which it is evaluated instead, so that
    the held-out images do not influence the choice of a configuration.

        >>> splits = data(validation=0.25)
        >>> len(splits["train"]), [len(x) for x, _ in splits["validation"]], [len(x) for x, _ in splits["held-out"]]
        (17, [359], [360])
    """
    (images, labels), (unseen, unseen_labels) = hold_out(*load_digits())
    size = len(images) - round(validation * len(images))
    held_out = batches(_rows(unseen), unseen_labels, batch_size=len(unseen))
    rest = held_out
    if size < len(images):
        rest = batches(_rows(images[size:]), labels[size:], batch_size=len(images) - size)
    train = Distorted(images[:size], labels[:size], distort, batch_size, seed)
    return {"train": train, "validation": rest, "held-out": held_out}


def loss(model: Any, batch: Any, label_smoothing: Share = 0.0) -> tuple[Any, dict[str, Any]]:
    """The cross-entropy, and the accuracy."""
    pixels, digits = batch
    logits = model(pixels)
    return cross_entropy(logits, digits, label_smoothing=label_smoothing), {
        "accuracy": (logits.argmax(axis=1) == digits).mean()
    }


class Distorted:
    """Batches of images, each distorted differently in each epoch."""

    def __init__(self, images: Any, labels: Any, how: Distortion, batch_size: int, seed: int) -> None:
        self.images, self.labels = images, labels
        self.how, self.batch_size, self.seed = how, batch_size, seed
        self.epoch = 1

    def set_epoch(self, epoch: int) -> None:
        """Choose the order and the distortions of an epoch."""
        self.epoch = epoch

    def describe(self) -> dict[str, Any]:
        """Plain values that determine the batches."""
        return {"images": len(self.images), "batch_size": self.batch_size, "seed": self.seed, "distort": str(self.how)}

    def __len__(self) -> int:
        return -(-len(self.images) // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        images = distort(self.images, self.how, generator(self.seed, self.epoch, DISTORTIONS))
        size, seed = self.batch_size, self.seed
        return iter(batches(_rows(images), self.labels, batch_size=size, seed=seed, epoch=self.epoch))


def _rows(images: Any) -> Any:
    """Images as rows of pixels."""
    return images.reshape(len(images), -1)
