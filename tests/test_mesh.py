"""Named axes over ranks: coordinates, groups, and several factorings of the same ranks."""

from __future__ import annotations

import pytest

from sim.errors import ProgramError
from sim.mesh import WORLD, Mesh

HELIX = Mesh({"dp": 2, "tpa": 2, "kvp": 3}, {"tpf": 3, "ep": 4})


def test_the_last_axis_is_innermost():
    assert HELIX.size == 12
    assert [HELIX.coordinate(7, axis) for axis in ("dp", "tpa", "kvp")] == [1, 0, 1]
    assert [HELIX.coordinate(7, axis) for axis in ("tpf", "ep")] == [1, 3]


def test_groups_are_the_ranks_that_differ_on_the_axes_only():
    assert HELIX.group(7, ("kvp",)) == (6, 7, 8)
    assert HELIX.group(7, ("tpa",)) == (7, 10)
    assert HELIX.group(7, ("dp",)) == (1, 7)
    assert HELIX.group(7, ("tpa", "kvp")) == (6, 7, 8, 9, 10, 11)
    assert HELIX.group(7, ("ep",)) == (4, 5, 6, 7)
    assert HELIX.group(7, ()) == (7,)
    assert HELIX.group(7, WORLD) == tuple(range(12))


def test_groups_partition_the_ranks():
    for axes in (("kvp",), ("tpa",), ("dp", "kvp"), ("ep",), ("tpf",), WORLD, ()):
        groups = HELIX.groups(axes)
        assert sorted(rank for group in groups for rank in group) == list(range(12))
        assert {len(group) for group in groups} == {HELIX.count(axes)}


def test_a_ranks_index_is_its_place_in_its_group():
    for axes in (("kvp",), ("tpa", "kvp"), ("dp", "kvp"), ("ep",), WORLD):
        assert all(HELIX.group(rank, axes)[HELIX.index(rank, axes)] == rank for rank in range(12))


def test_all_axes_of_a_factoring_are_the_world():
    assert HELIX.real(("dp", "tpa", "kvp")) == WORLD
    assert HELIX.real(("kvp", "dp", "tpa")) == WORLD
    assert HELIX.real(("ep", "tpf")) == WORLD
    assert HELIX.real(("kvp", "tpa")) == ("tpa", "kvp")  # in the mesh's order
    assert HELIX.real(()) == ()
    assert HELIX.spread(WORLD, ("kvp",)) == ("dp", "tpa", "kvp")
    assert HELIX.spread(WORLD, ("ep",)) == ("tpf", "ep")


def test_axes_of_size_1_are_never_there():
    mesh = Mesh({"dp": 1, "tp": 4})
    assert mesh.real(("dp", "tp")) == mesh.real(("tp",)) == WORLD
    assert mesh.real(("dp",)) == ()
    assert Mesh({"tp": 1}).real(WORLD) == ()


def test_a_mesh_that_does_not_add_up_is_refused():
    with pytest.raises(ProgramError) as error:
        Mesh({"tp": 4}, {"tpf": 2, "ep": 3})
    assert str(error.value) == "axes {'tpf': 2, 'ep': 3} do not multiply to 4 ranks"
    for factorings in (({"tp": 2}, {"tp": 2}), ({"world": 2},)):
        with pytest.raises(ProgramError, match=r"axis '\w+' is defined twice"):
            Mesh(*factorings)
