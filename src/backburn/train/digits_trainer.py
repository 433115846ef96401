"""Training on the digits, with a state that can be saved and restored between epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from math import inf, isfinite
from typing import Any

from backburn.backend import AnyBackend
from backburn.base.errors import ConfigError, NumericalInstabilityError
from backburn.data import CLASSES, Distortion, batches, distort, hold_out, load_digits
from backburn.data.order import generator
from backburn.nn import Module
from backburn.nn.functional import cross_entropy
from backburn.optim.schedules import ReduceOnPlateau
from backburn.tensor.core.defaults import no_grad
from backburn.tensor.core.host import asarray
from backburn.tensor.core.wrapping import is_tensor
from backburn.tensor.random import Generator, fork
from backburn.tensor.shape import stack
from backburn.train.config import Config, config_of
from backburn.train.model import build_model, build_optimizer
from backburn.transforms.capturing import capture

#: The stream of random numbers for distortions; stream 0 is for the order.
DISTORTIONS = 1


@dataclass(frozen=True)
class Epoch:
    """The results of an epoch: loss and accuracy during training, and the accuracy on unseen images after it.

    These are the validation images, if the configuration has any, else the held-out ones. The first two are measured
    with distorted images and dropout, so that they may be worse than the third. Accuracies are between 0 and 1.
    """

    number: int
    loss: float
    accuracy: float
    unseen: float


class Trainer:
    """A training run: configuration, model, optimizer and the epochs so far.

    The order of the images, their distortions, the initial values and dropout follow from the seed alone, so that the
    same configuration on the same backend gives the same numbers.
    """

    def __init__(self, config: Config, backend: AnyBackend) -> None:
        """A run that has not begun. ``backend`` must differentiate."""
        self.config = config
        self.backend = backend
        (images, labels), self.held_out = hold_out(*load_digits())
        size = len(images) - round(config.data.validation * len(images))
        self.images, self.labels = images[:size], labels[:size]
        self.unseen = (images[size:], labels[size:]) if size < len(images) else self.held_out
        self.random = Generator(config.train.seed)
        with fork(self.random):
            self.model = model_of(config, backend)
        self.optimizer = build_optimizer(config.optimizer, config.train.epochs * self.steps_per_epoch)
        self._step = capture(self._learn) if config.train.capture else self._learn
        self.history: list[Epoch] = []

    @property
    def unseen_name(self) -> str:
        """The name of the images that are measured after each epoch."""
        return "held out" if self.unseen is self.held_out else "validation"

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches in an epoch."""
        return -(-len(self.images) // self.config.train.batch_size)

    def run_epoch(self, progress: Callable[[Iterable[Any]], Iterable[Any]] = iter) -> Epoch:
        """Train on all training images once; ``progress`` wraps the batches, to show progress.

        Raises :class:`NumericalInstabilityError` when the loss or a parameter is not a finite number any more.
        """
        number = len(self.history) + 1
        train, backend = self.config.train, self.backend
        how = Distortion(**self.config.data.distort.model_dump())
        images = distort(self.images, how, generator(train.seed, number, DISTORTIONS))
        order = batches(images, self.labels, batch_size=train.batch_size, seed=train.seed, epoch=number)
        losses, right, counts = [], [], []
        self.model.train()
        with fork(self.random):
            for pixels, digits in progress(order):
                x, y = _rows(pixels, backend), asarray(digits, backend=backend)
                _, (loss, correct) = self._step((self.model, self.optimizer), x, y)
                losses.append(loss)
                right.append(correct)
                counts.append(len(pixels))
        # One transfer per epoch: reading at each step would make a device wait.
        values = stack(losses).tolist()
        if bad := next((value for value in values if not isfinite(value)), None):
            raise self._diverged(f"the loss is {bad} in epoch {number}")
        if not all((x.max_abs() < inf).item() for x in self.model.parameters()):
            raise self._diverged(f"not all parameters are finite after epoch {number}")
        loss_sum = sum(value * count for value, count in zip(values, counts, strict=True))
        accurate = stack(right).sum().item() / len(images)
        unseen = accuracy(self.model, *self.unseen)
        epoch = Epoch(number, loss_sum / len(images), accurate, unseen)
        self.history.append(epoch)
        if isinstance(self.optimizer.lr, ReduceOnPlateau):
            self.optimizer.lr.observe(epoch.loss)
        return epoch

    def _learn(self, state: tuple[Any, Any], x: Any, y: Any) -> tuple[Any, tuple[Any, Any]]:
        """A step: the state, the loss, and how many digits of the batch were right."""
        model, optimizer = state
        logits = model(x)
        loss = cross_entropy(logits, y, label_smoothing=self.config.train.label_smoothing)
        optimizer.step(model, loss.backward())
        return state, (loss.detach(), (logits.argmax(axis=1) == y).sum())

    def _diverged(self, how: str) -> NumericalInstabilityError:
        rate = self.config.optimizer.learning_rate
        return NumericalInstabilityError(f"training has diverged: {how}. Try a smaller learning_rate than {rate:g}")

    def held_out_accuracy(self) -> float:
        """The share of held-out images that the model classifies correctly."""
        return self.history[-1].unseen if self.unseen is self.held_out else accuracy(self.model, *self.held_out)

    def state(self) -> dict[str, Any]:
        """The complete state, as a tree of tensors and plain values, which further epochs do not change.

        The output folder is left out, so that equal runs write equal files.
        """
        rate = self.optimizer.lr
        return {
            "config": self.config.model_dump(exclude={"output"}),
            "history": [asdict(epoch) for epoch in self.history],
            "model": dict(self.model.state_dict()),
            "optimizer": dict(self.optimizer.state_dict()),
            "random": self.random.state(),
            **({"rate": rate.state_dict()} if isinstance(rate, ReduceOnPlateau) else {}),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore a saved :meth:`state`.

        Raises :class:`ConfigError` if its configuration differs in more than the number of epochs, ``capture``, the
        backend and the output folder.
        """
        check_resumable(self.config, config_of(state["config"], "the saved state"))
        self.model.load_state_dict(state["model"])
        remembered = state["optimizer"].items()
        tensors = {name: _here(x, self.backend) if hasattr(x, "shape") else x for name, x in remembered}
        self.optimizer.load_state_dict(tensors)
        if isinstance(self.optimizer.lr, ReduceOnPlateau):
            self.optimizer.lr.load_state_dict(state["rate"])
        self.history = [Epoch(**epoch) for epoch in state["history"]]
        self.random.set_state(state["random"])


def model_of(config: Config, backend: AnyBackend) -> Module:
    """The untrained model of a configuration."""
    images, _ = load_digits()
    return build_model(config.model, images[0].size, CLASSES, backend)


def accuracy(model: Module, images: Any, labels: Any) -> float:
    """The share of images that the model classifies correctly; nothing is recorded, dropout is off."""
    model.eval()
    backend = model.parameters()[0].backend
    with no_grad():
        logits = model(_rows(images, backend))
        return int((logits.argmax(axis=1) == asarray(labels, backend=backend)).sum().item()) / len(labels)


def _here(x: Any, backend: AnyBackend) -> Any:
    """A tensor of any backend, or an array, as a tensor of this one."""
    return x.to(backend) if is_tensor(x) else asarray(x, backend=backend)


def _rows(images: Any, backend: AnyBackend) -> Any:
    """Images as rows of a tensor, in the float dtype that the backend has."""
    return asarray(images.reshape(len(images), -1), dtype=backend.float_dtype, backend=backend)


def check_resumable(config: Config, saved: Config) -> None:
    """Raise for resuming a run with another configuration; epochs, folder, backend and capture may differ."""
    ours, theirs = _comparable(config), _comparable(saved)
    different = [key for key in ours if ours[key] != theirs[key]]
    if different:
        words = ", ".join(f"{key} (was {theirs[key]!r}, is {ours[key]!r})" for key in different)
        raise ConfigError(f"the saved run cannot be resumed with another configuration: {words}")


def _comparable(config: Config) -> dict[str, Any]:
    tables = config.model_dump(exclude={"backend": True, "output": True, "train": {"epochs", "capture"}})
    return {f"{table}.{key}": value for table, section in tables.items() for key, value in section.items()}
