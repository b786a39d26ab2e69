"""Parts own their settings, are built from names and trees, and are values whose state is no setting."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
from pydantic import Field, PrivateAttr

from ibpwf.errors import InputError
from ibpwf.parts import Count, FrozenSettings, OfGroup, Part, Positive, build, register, require


class Filling(Part):
    group: ClassVar[str] = "filling"


@register
class Jam(Filling):
    kind: ClassVar[str] = "jam"
    sugar: Positive = 0.5
    _eaten: int = PrivateAttr(0)

    def eat(self) -> Jam:
        other = copy.copy(self)
        other._eaten += 1
        return other


@register
class Layers(Filling):
    kind: ClassVar[str] = "layers"
    of: tuple[Annotated[Filling, OfGroup("filling")], ...] = ()


class Cake(Part):
    group: ClassVar[str] = "cake"


@register
class Sponge(Cake):
    kind: ClassVar[str] = "sponge"
    fixed: ClassVar[frozenset[str]] = frozenset({"eggs"})
    eggs: Count = 3
    flour: dict[str, float] = Field(default_factory=dict)
    filling: Annotated[Filling, OfGroup("filling")] = Jam()


@register
class Crumble(Cake):
    kind: ClassVar[str] = "crumble"
    butter: Positive = 1.0

    def check_settings(self) -> None:
        require(self.butter < 10, "butter", self.butter, "it must be below 10")


class Order(FrozenSettings):
    guests: Count = 2
    cake: Annotated[Cake, OfGroup("cake")] = Sponge()


def test_a_part_is_given_as_an_instance_a_class_a_kind_or_a_tree() -> None:
    wanted = Order(cake=Crumble())
    assert wanted == Order(cake="crumble") == Order(cake=Crumble) == Order(cake={"kind": "crumble"})  # type: ignore[arg-type]
    assert Order() == Order(cake={"kind": "sponge", "filling": {"kind": "jam", "sugar": 0.5}})  # type: ignore[arg-type]
    assert Order(cake={"eggs": 4}) == Order(cake=Sponge(eggs=4))  # type: ignore[arg-type]
    assert build("cake", {"kind": "sponge", "eggs": 4}) == Sponge(eggs=4)


@pytest.mark.parametrize(
    "order",
    [
        Order(),
        Order(guests=3, cake=Crumble(butter=2.0)),
        Order(cake=Sponge(filling=Layers(of=(Jam(), Jam(sugar=2))))),
    ],
)
def test_settings_with_parts_go_to_json_and_back(order: Order) -> None:
    tree = json.loads(json.dumps(order.to_json()))
    assert tree["cake"]["kind"] == order.cake.kind
    assert Order.from_json(tree) == order
    assert Order.from_json(tree).to_json() == order.to_json()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"guests": 0}, r"^guests is 0; give at least 1"),
        ({"cake": {"kind": "sponge", "eggs": 0}}, r"^cake\.eggs is 0; give at least 1"),
        ({"cake": {"kind": "crumble", "butter": 12.0}}, r"^cake\.butter is 12\.0; it must be below 10"),
        (
            {"cake": {"kind": "sponge", "filling": {"kind": "jam", "sugar": -1.0}}},
            r"^cake\.filling\.sugar is -1\.0; ",
        ),
        ({"cake": {"kind": "sponge", "filling": "jm"}}, r"unknown cake\.filling 'jm'\. Did you mean 'jam'\?"),
        ({"cake": "spong"}, r"unknown cake 'spong'\. Did you mean 'sponge'\?"),
        ({"cake": {"kind": "sponge", "egs": 2}}, r"'cake\.egs'\. Did you mean 'cake\.eggs'\?"),
        ({"cake": 3}, r"^cake is 3; expected a Cake or its kind: 'sponge' or 'crumble'"),
        ({"cake": Jam()}, r"^cake is .*; expected a Cake or its kind"),
        ({"cake": {"kind": "crumble", "eggs": 2}}, r"unknown setting of cake 'crumble' 'cake\.eggs'"),
    ],
)
def test_an_error_names_the_dotted_field_and_the_value(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Order(**values)


def test_state_is_no_setting_and_is_copied_with_the_part() -> None:
    jam = Jam(sugar=2.0)
    eaten = jam.eat()
    assert eaten == jam
    assert hash(eaten) == hash(jam)
    assert (jam._eaten, eaten._eaten, copy.deepcopy(eaten)._eaten) == (0, 1, 1)
    assert eaten.to_json() == jam.to_json() == {"kind": "jam", "sugar": 2.0}
    with pytest.raises(ValueError, match="frozen"):
        eaten.sugar = 3.0


@pytest.mark.parametrize(
    ("layers", "wanted"),
    [
        ([{"cake.eggs": 4}], Order(cake=Sponge(eggs=4))),
        (
            [{"cake": {"kind": "sponge", "eggs": 4}}, {"cake.filling.sugar": 1.0}],
            Order(cake=Sponge(eggs=4, filling=Jam(sugar=1.0))),
        ),
        ([{"cake": Sponge(eggs=4)}, {"cake": "crumble", "cake.butter": 2.0}], Order(cake=Crumble(butter=2.0))),
        ([{"cake.eggs": 4}, {"cake": "sponge"}], Order(cake=Sponge(eggs=4))),
        ([{"cake": "crumble", "guests": 5}, {"cake": "sponge"}, {"guests": 6}], Order(guests=6)),
        ([{"cake": Crumble(butter=2.0)}, {"cake": Crumble()}], Order(cake=Crumble())),
        (
            [{"cake": {"flour": {"rye": 1.0}}}, {"cake": {"flour": {"oat": 2.0}}}],
            Order(cake=Sponge(flour={"oat": 2.0})),
        ),
    ],
)
def test_later_layers_refine_a_part_or_name_another_kind(layers: list[dict[str, Any]], wanted: Order) -> None:
    assert Order(**Order.merged(*layers)) == wanted


def test_a_copy_with_changes_keeps_what_was_given_of_a_part() -> None:
    order = Order(cake=Sponge(eggs=4), guests=3)
    assert order.replace(**{"cake.filling.sugar": 2.0}) == Order(
        cake=Sponge(eggs=4, filling=Jam(sugar=2.0)), guests=3
    )
    assert order.replace(cake="crumble") == Order(cake=Crumble(), guests=3)
    with pytest.raises(InputError, match=r"^guests\.of is 3; guests is no part"):
        order.replace(**{"guests.of": 3})
    with pytest.raises(InputError, match=r"'cake\.egs'"):
        order.replace(**{"cake.egs": 3})


def test_a_class_without_a_kind_is_named_by_its_module_which_data_cannot_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Bun(Sponge):
        """Derived, and so not of the kind 'sponge'."""

    assert (
        Order(cake=Bun())
        .to_json()["cake"]["kind"]
        .endswith(":test_a_class_without_a_kind_is_named_by_its_module_which_data_cannot_import.<locals>.Bun")
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_cakes.py").write_text(
        "from ibpwf.parts import Part, _BASES\nclass Pie(_BASES['cake']):\n    apples: int = 3\n"
    )
    order = Order(cake={"kind": "own_cakes:Pie", "apples": 4})  # type: ignore[arg-type]
    assert order.to_json()["cake"] == {"kind": "own_cakes:Pie", "apples": 4}
    with pytest.raises(InputError, match="unknown cake 'own_cakes:Pie'"):
        Order.from_json(order.to_json())
    register(type(order.cake))
    assert Order.from_json(order.to_json()) == order
