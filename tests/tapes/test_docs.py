"""The pages on tapes: their examples run, and their tables list every item of the specifications."""

from __future__ import annotations

import doctest
import pickle
import re
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest

from backburn import tape as over_tensors
from backburn.autodiff import tape as over_primitives
from backburn.autodiff.tape import AnyGradOp
from backburn.autodiff.tape import closures as closures_over_primitives
from backburn.backend import AUTODIFF_METHODS
from backburn.tape import closures as closures_over_tensors

PAGES = Path(__file__).parents[2] / "docs" / "tapes"
MODULES = [over_tensors, over_primitives, closures_over_tensors, closures_over_primitives]
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


@pytest.mark.parametrize("page", ["index", "trait", "record", "closures", "graph"])
def test_examples_run(page: str) -> None:
    blocks = re.findall(r"```\{doctest\}\n(.*?)```", (PAGES / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL)
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, page, page, 0)
    assert len(test.examples) >= 5
    assert doctest.DocTestRunner(optionflags=FLAGS).run(test).failed == 0


def items(page: str) -> str:
    """The first column of the table of all items."""
    table = (PAGES / f"{page}.md").read_text(encoding="utf-8").partition("## Every item of the document")[2]
    return "\n".join(line.split("|")[1] for line in table.splitlines() if line.startswith("|"))


def test_tables_list_every_item_of_the_specifications() -> None:
    expected = {
        "trait": [*AUTODIFF_METHODS, "InnerBackend", "Gradients: Send", "Object Safety"],
        "record": [
            "new()", "record_add", "record_mul", "record_matmul", "record_silu", "record_layer_norm",
            "record_ssm_scan", "backward(", "loss_grad", "tensors", "numerical_instability", "Default",
            "Auto Trait", "type_id", "BorrowMut", "Into", "TryFrom", "Instrument", "WithSubscriber", "IntoEither",
            "Pointable", "PolicyExt", "Same", "VZip", "ErasedDestructor",
        ],
        "closures": ["add_backward_op", "Leaves `other` empty", "takes ownership", "Debug", "Default", "TryInto"],
        "graph": [*(f"`{v.__name__}" for v in get_args(AnyGradOp)), "Send", "BorrowMut", "CloneToUninit", "IntoEither"],
    }  # fmt: skip
    lacking = {page: [name for name in names if name not in items(page)] for page, names in expected.items()}
    assert not any(lacking.values()), lacking


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_classes_have_public_paths_and_examples_that_run(module: ModuleType) -> None:
    """Doctest skips the examples of classes whose ``__module__`` is not the module that defines them."""
    for name in set(module.__all__) - {"AnyGradOp"}:
        cls = getattr(module, name)
        public = f"{cls.__module__}.{cls.__qualname__}"
        assert public.startswith(("backburn.tape.", "backburn.autodiff.tape."))
        assert pickle.loads(pickle.dumps(cls)) is cls
        runner = doctest.DocTestRunner(optionflags=FLAGS)
        for test in doctest.DocTestFinder(exclude_empty=True).find(cls, public, module=False, globs={name: cls}):
            runner.run(test)
        assert runner.summarize(verbose=False).failed == 0
    examples = doctest.DocTestFinder().find(module.GradientTape, module=False)
    assert any(test.examples for test in examples)
