"""The trainer of a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from backburn import optim
from backburn.backend import AnyBackend
from backburn.backend.registry import SHAPES_ONLY
from backburn.base.errors import ConfigError
from backburn.base.mutable_trees import MutableTree
from backburn.communicators import Local, launched
from backburn.decorators.sharding import created_in_parts
from backburn.distributed import Mesh, mesh, place, place_state, plans
from backburn.distributed.meshes import DATA
from backburn.nn import Module
from backburn.optim import schedules
from backburn.tensor.core.defaults import use_backend
from backburn.tensor.core.wrapping import is_tensor
from backburn.tensor.generators import Generator, fork
from backburn.train.callbacks import Callback, Checkpoints, EarlyStopping, Plateau
from backburn.train.config import DIGITS, DistributedConfig, OptimizerConfig, Run, ScheduleConfig, no_key, validated
from backburn.train.signatures import Parameters, parameters_of
from backburn.train.states import data_description, flat
from backburn.train.trainer import Trainer

T = TypeVar("T")

#: The mesh axis over which the layers of a transformer are split.
TENSOR = "tp"
#: The classes of optimizers and schedules, by their names in a configuration.
OPTIMIZERS: dict[str, type[Any]] = {name.lower(): getattr(optim, name) for name in (
    "SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Lion", "Adan", "RMSprop", "Adagrad", "Adadelta", "Adafactor",
    "Muon",
)}  # fmt: skip
SCHEDULES: dict[str, type[Any]] = {
    "linear": schedules.Linear,
    "polynomial": schedules.Polynomial,
    "cosine": schedules.Cosine,
    "cosine_warm_restarts": schedules.CosineWarmRestarts,
    "exponential": schedules.Exponential,
    "step": schedules.Step,
    "multi_step": schedules.MultiStep,
    "one_cycle": schedules.OneCycle,
    "plateau": schedules.ReduceOnPlateau,
}
#: The options of schedules that are their rate, and their length.
_RATES, _LENGTHS = ("lr", "init_value", "max_lr"), ("T_max", "total_iters", "total_steps")


@dataclass(frozen=True)
class Built:
    """The trainer of a configuration, and the data on which the trained model is measured, by name."""

    trainer: Trainer[Any]
    splits: Mapping[str, Any]


def mesh_of(run: Run) -> Mesh | None:
    """The mesh of a configuration; None without the table ``[distributed]``.

    Raises :class:`ConfigError`, which names file and line, for a mesh that the processes of this program cannot form,
    for one with an axis over which nothing is split, and without the table for a program of several processes.
    """
    config = run.config.distributed
    if config is None:
        found = launched()
        if found is not None and found[1] > 1:
            raise ConfigError(
                f"{run.source.name}: {found[1]} processes were started, and the file has no table [distributed]: each "
                f"would train on its own. Add the table, with mesh = {{ dp = {found[1]} }}, or start one process"
            )
        return None
    _check_axes(run, config)
    options: dict[str, Any] = {name: getattr(config, name) for name in ("deterministic", "timeout", "check", "threads")}
    return _placed(run, "distributed", lambda: mesh(**{**options, **config.mesh}))


def _check_axes(run: Run, config: DistributedConfig) -> None:
    """Raise :class:`ConfigError` for a mesh, a plan and ``parameters`` that do not fit together."""

    def error(key: str, words: str) -> ConfigError:
        return ConfigError(f"{run.source.place(('distributed', key))}: distributed.{key}: {words}")

    axis, transformer = DATA if DATA in config.mesh else next(iter(config.mesh)), 'plan = "transformer"'
    idle = [name for name in config.mesh if name != axis and (name != TENSOR or config.plan is None)]
    if idle:
        words = f"Batches are split over {axis!r}, and with {transformer} layers over {TENSOR!r}"
        raise error("mesh", f"nothing is split over {idle[0]!r}. {words}")
    if axis == TENSOR and config.plan is None:
        words = f"write {transformer} for that, or mesh = {{ {DATA} = {config.mesh[TENSOR]} }} to split batches"
        raise error("mesh", f"{TENSOR!r} is for splitting layers, and no plan splits them: {words}")
    if config.plan is not None and TENSOR not in config.mesh:
        raise error("plan", f"the mesh has no axis {TENSOR!r}, over which layers are split")
    if axis == TENSOR and config.parameters != "replicated":
        words = f"splits the parameters that the plan does not split over {DATA!r}, which the mesh does not have"
        raise error("parameters", f"{config.parameters!r} {words}")


def check_plan(run: Run) -> str:
    """Raise :class:`ConfigError` for a mesh and a plan that training refuses, in one process and without values.

    With a plan, the model is imported and built. Returns what could not be checked, or an empty text.
    """
    config = run.config.distributed
    if config is None:
        return ""
    _check_axes(run, config)
    given: dict[str, Any] = {"deterministic": config.deterministic, "timeout": config.timeout, "check": config.check}
    made = _placed(run, "distributed", lambda: mesh(**{**given, **config.mesh, "communicator": Local()}))
    if config.plan is None:
        return ""
    try:
        with use_backend(made.spec(f"autodiff({SHAPES_ONLY})")), fork(Generator(run.config.train.seed)):
            function, arguments = run.functions()["model",]
            model = function(**arguments)
    except Exception as error:  # of the model's own code, which may need values or a missing package
        return f"whether the model fits the plan, since it cannot be built here: {type(error).__name__}: {error}"
    _check_module(run, model)
    _placed(run, "distributed", lambda: place(model, plan_of(run, made)))
    return ""


def plan_of(run: Run, made: Mesh) -> plans.Plan:
    """How the parameters of a configuration's model are placed on its mesh."""
    config = run.config.distributed
    assert config is not None
    if config.plan is None:
        return plans.named(config.parameters, made.data_axis)
    over = made.data_axis if made.data_axis != TENSOR else None
    return plans.transformer(TENSOR, over, config.parameters)


def check_steps(run: Run) -> None:
    """Raise :class:`ConfigError` for an optimizer or a schedule that training refuses, whatever the data's length."""
    train = run.config.train
    _optimizer(run, (train.steps_per_epoch or 1000) * train.epochs)


def build(
    run: Run, backend: AnyBackend, callbacks: list[Callback], folder: str | None = None, mesh: Mesh | None = None
) -> Built:
    """The trainer of a configuration with further callbacks, on ``backend`` (that of ``mesh``, if there is one).

    The initial parameters and all draws follow from ``train.seed``. Raises :class:`ConfigError` for functions that
    cannot be found or do not take their arguments; errors that they raise themselves are not changed.
    """
    functions, config = run.functions(), run.config
    train = config.train
    random = Generator(train.seed)
    with use_backend(backend), fork(random), _in_parts(run, mesh):
        function, arguments = functions["model",]
        model = function(**arguments)
    function, arguments = functions["data",]
    splits = splits_of(function(**arguments), run)
    function, arguments = functions["loss",]
    loss = partial(function, **arguments) if arguments else function
    metrics = {name: functions["metrics", name][0] for name in config.metrics}
    for name in config.callbacks.arguments:
        function, arguments = functions["callbacks", name]
        callbacks = [*callbacks, function(**arguments)]
    if config.callbacks.early_stopping is not None:
        callbacks = [*callbacks, EarlyStopping(**config.callbacks.early_stopping.model_dump())]
    callbacks = [*callbacks, _checkpoints(run)]
    if config.optimizer.schedule == "plateau":
        callbacks = [*callbacks, Plateau("loss")]
    data = splits["train"]
    if mesh is not None:
        mesh.check_equal("the configuration", {**flat(run.tables), "data": data_description(data)})
    per_epoch = train.steps_per_epoch or (-(-len(data) // train.accumulate) if hasattr(data, "__len__") else None)
    optimizer = _optimizer(run, None if per_epoch is None else per_epoch * train.epochs)
    if mesh is not None:
        _place_over(run, mesh, model, optimizer)
    trainer = Trainer(
        model,
        loss,
        data,
        optimizer=optimizer,
        validation=splits.get("validation"),
        metrics=metrics,
        callbacks=callbacks,
        folder=folder,
        capture=train.capture,
        precision=train.precision,
        accumulate=train.accumulate,
        clip=train.clip,
        average=None if train.average is None else optim.Average(train.average),
        seed=train.seed,
        on_nan=train.on_nan,
        steps_per_epoch=train.steps_per_epoch,
        log_every=train.log_every,
        progress=False,
        mesh=mesh,
    )
    trainer.random.set_state(random.state())
    trainer.about = {"config": {name: x for name, x in run.tables.items() if name != "output"}}
    return Built(trainer, {name: part for name, part in splits.items() if name not in ("train", "validation")})


def _in_parts(run: Run, mesh: Mesh | None) -> Any:
    """The context in which a model is built: no process creates the whole of parameters that will be sharded."""
    config = run.config.distributed
    if mesh is None or config is None or config.parameters != "sharded":
        return nullcontext()
    return created_in_parts({mesh.data_axis: 0})


def _place_over(run: Run, mesh: Mesh, model: Any, optimizer: Any) -> None:
    """Place the parameters of a model, and the state of its optimizer, as configured; buffers are replicated."""

    def place_both() -> None:
        plan = plan_of(run, mesh)
        own = {id(x) for x in model.parameters()}
        for leaf in MutableTree(model, is_tensor).leaves:
            if id(leaf.value) not in own:
                leaf.put(place(leaf.value, dict.fromkeys(mesh.axes)))
        place(model, plan)
        place_state(optimizer, model, plan)

    _check_module(run, model)
    _placed(run, "distributed", place_both)


def _check_module(run: Run, model: Any) -> None:
    if not isinstance(model, Module):
        where = run.source.place(("model", "build"))
        raise ConfigError(f"{where}: [distributed] places the parameters of an nn.Module, not of {type(model)}")


def model_of(run: Run, backend: AnyBackend) -> Any:
    """The untrained model of a configuration."""
    function, arguments = run.functions("model")["model",]
    with use_backend(backend), fork(Generator(run.config.train.seed)):
        return function(**arguments)


def _checkpoints(run: Run) -> Checkpoints:
    """Choose what is kept: for the digits by default no best model, since held-out images would choose it."""
    config = run.config.callbacks.checkpoints
    if config is None:
        return Checkpoints(best=None if run.config.data.build == DIGITS["data"] else "validation/loss")
    return Checkpoints(**{**config.model_dump(), "best": config.best or None})


def splits_of(made: Any, run: Run) -> dict[str, Any]:
    """The data by name, from the result of a function."""
    if made is None:
        place = run.source.place(("data", "build"))
        raise ConfigError(f"{place}: {run.config.data.build} returned None instead of the data")
    if isinstance(made, Mapping):
        if "train" not in made:
            raise ConfigError(
                f"{run.source.place(('data', 'build'))}: {run.config.data.build} returned data by name, but none is "
                f"called 'train': {', '.join(map(repr, made)) or 'none at all'}"
            )
        return {name: data for name, data in made.items() if data is not None}
    if isinstance(made, tuple) and len(made) == 2:
        return {"train": made[0], "validation": made[1]}
    return {"train": made}


def _optimizer(run: Run, steps: int | None) -> Any:
    """The optimizer, whose rate is a number or a schedule over ``steps``."""
    config, schedule = run.config.optimizer, run.config.schedule
    if schedule is not None and config.schedule != "constant":
        place = run.source.place(("schedule",))
        raise ConfigError(f"{place}: [schedule] and the key schedule of [optimizer] say the same: give one of them")
    kind = OPTIMIZERS[config.name]
    parameters = parameters_of(kind)
    if "lr" in config.arguments:
        raise ConfigError(f"{run.source.place(('optimizer', 'lr'))}: {no_key(['optimizer'], 'lr', ['learning_rate'])}")
    idle = [key for key in ("factor", "patience") if key in config.model_fields_set and config.schedule != "plateau"]
    if idle:
        place = run.source.place(("optimizer", idle[0]))
        raise ConfigError(f"{place}: optimizer.{idle[0]}: it is for schedule = 'plateau', not {config.schedule!r}")
    others = {name: kind for name, kind in parameters.types.items() if name != "lr"}
    known = Parameters({"learning_rate": float, **others}, parameters.required - {"lr"}, parameters.takes_any)
    options = validated(config.arguments, known, run.source, ("optimizer",))
    if "weight_decay" in parameters.types:
        options["weight_decay"] = config.weight_decay
    elif config.weight_decay:
        place = run.source.place(("optimizer", "weight_decay"))
        raise ConfigError(f"{place}: optimizer.weight_decay: {config.name} has none")
    return _placed(run, "optimizer", lambda: kind(_rate(run, config, schedule, steps), **options))


def _rate(run: Run, config: OptimizerConfig, schedule: ScheduleConfig | None, steps: int | None) -> Any:
    """The learning rate: a number, or a schedule."""
    rate: Any = config.learning_rate
    if schedule is None:
        if config.schedule == "cosine":
            return schedules.Cosine(rate, _length(run, steps))
        if config.schedule == "plateau":
            return schedules.ReduceOnPlateau(rate, factor=config.factor, patience=config.patience)
        return rate
    if schedule.name == "constant":
        for key in schedule.arguments:
            place = run.source.place(("schedule", key))
            raise ConfigError(f"{place}: {no_key(['schedule'], key, list(type(schedule).model_fields))}")
    else:
        kind = SCHEDULES[schedule.name]
        parameters = parameters_of(kind)
        given = schedule.arguments
        for name in parameters.types:
            if name in _RATES:
                given.setdefault(name, rate)
            elif name in _LENGTHS and name not in given:
                given[name] = max(_length(run, steps) - schedule.warmup, 1)
            elif name == "end_value" and name in parameters.required:
                given.setdefault(name, 0.0)
        options = validated(given, parameters, run.source, ("schedule",))
        rate = _placed(run, "schedule", lambda: kind(**options))
    return schedules.Warmup(schedule.warmup, rate) if schedule.warmup else rate


def _length(run: Run, steps: int | None) -> int:
    if steps is None:
        raise ConfigError(
            f"{run.source.place(('train',))}: the schedule spans the whole run, but the data have no length: "
            f"give train.steps_per_epoch"
        )
    return steps


def _placed(run: Run, table: str, make: Callable[[], T]) -> T:
    """Call ``make``; its errors name the place of a table."""
    try:
        return make()
    except (ValueError, TypeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{run.source.place((table,))}: {table}: {error}") from error
