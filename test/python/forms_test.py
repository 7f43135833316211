"""The forms of an operation (in place, in the background, of groups) have the same parameters, and
return what their names say."""

import collections
import importlib
import inspect
import re

import pytest

# The parameters that a form lacks: where, and which forms.
LACKS = [
    ("rueda", r"grouped_allreduce\w*", "priority"),
    ("rueda", r"grouped_reducescatter\w*", "compression"),
    # As in Horovod.
    ("rueda.torch", r"\w*(_async_?|_)", "compression"),
]
# What is in place has a result on all ranks, and not only on the root.
IN_PLACE = {"T | None": "T"}
GROUPS = {"T": "list[T]", "torch.Tensor": "list[torch.Tensor]"}
NAME = re.compile(r"(?P<grouped>grouped_)?(?P<base>[a-z]+?)(?P<background>_async)?(?P<in_place>_)?")


def operations(module):
    """Of each operation in more than one form: its forms' names, the plainest one first."""
    found = collections.defaultdict(list)
    for name in sorted(module.__all__, key=len):
        match = NAME.fullmatch(name)
        if match and inspect.isfunction(getattr(module, name)):
            found[match["base"]].append(name)
    return [names for names in found.values() if len(names) > 1]


def expected(where, name, plain):
    """The signature of a form, from that of the plainest one."""
    form = NAME.fullmatch(name)
    parameters = [
        parameter
        for parameter in plain.parameters.values()
        if not any(
            where == module and re.fullmatch(forms, name) and parameter.name == lacked
            for module, forms, lacked in LACKS
        )
    ]
    returns = plain.return_annotation
    if form["grouped"]:
        tensors = f"Sequence[{parameters[0].annotation}]"
        parameters[0] = parameters[0].replace(name="tensors", annotation=tensors)
        returns = GROUPS[returns]
    if form["in_place"]:
        returns = IN_PLACE.get(returns, returns)
    if form["background"]:
        returns = f"Handle[{returns}]"
    return plain.replace(parameters=parameters, return_annotation=returns)


@pytest.mark.parametrize("where", ["rueda", "rueda.torch"])
def test_forms_of_an_operation_have_the_same_signature(where):
    pytest.importorskip(where.replace("rueda.", ""))
    module = importlib.import_module(where)
    found = operations(module)
    assert {"allreduce", "reducescatter", "broadcast", "allgather", "alltoall"} <= {
        names[0] for names in found
    }
    wrong = []
    for names in found:
        plain = inspect.signature(getattr(module, names[0]))
        for name in names[1:]:
            own, right = inspect.signature(getattr(module, name)), expected(where, name, plain)
            if own != right:
                wrong.append(f"{where}.{name}{own}, and by {names[0]} {right}")
    assert not wrong, "\n".join(wrong)
