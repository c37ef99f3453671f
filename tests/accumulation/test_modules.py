"""Modules are found without being told, and only as long as they live."""

import gc

from torch import nn

from gradgate.accumulation._modules import LiveModules


class Own(nn.Linear):
    """A module of a user's own class."""


def test_modules_of_any_class_are_found_and_named_by_their_longest_path() -> None:
    inner = Own(1, 1)
    middle = nn.Sequential(nn.Identity(), inner)
    outer = nn.ModuleDict({"body": middle})
    modules = LiveModules()
    found = {id(module) for module in modules}
    assert {id(inner), id(middle), id(outer)} <= found
    assert modules.name(inner) == "Own 'body.1'"
    assert modules.name(outer) == "ModuleDict"


def test_what_is_gone_is_not_kept_alive() -> None:
    module = Own(1, 1)
    modules = LiveModules()
    assert any(one is module for one in modules)
    del module
    gc.collect()
    assert not any(type(one) is Own for one in modules)


def test_a_look_is_taken_anew_for_parameters_that_are_not_known() -> None:
    first = Own(1, 1)
    modules = LiveModules()
    list(modules)
    later = Own(1, 1)
    assert not any(one is later for one in modules)
    modules.look_for(first.parameters())
    assert not any(one is later for one in modules)
    modules.look_for(later.parameters())
    assert any(one is later for one in modules)
