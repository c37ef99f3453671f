"""GG601: graphs that outlive their step."""

from gradgate.events import GraphsKept
from tests.checker.rules._build import Story, said, site

LISTED = """\
for x, y in loader:
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    shown.append(loss.item())
    losses.append(loss)
"""


def test_a_list_of_losses_keeps_their_graphs() -> None:
    story = Story("fc.weight", source=LISTED).optimizer()
    for _ in range(4):
        story.clear(1).backward(3).step(4)
    story.add(GraphsKept(site(4), 4, site(3), "losses", site(1)))
    assert said(story.judged("GG601")) == [
        "train.py:6: GG601 warning: losses keeps the graphs of at least 4 earlier backward calls alive."
    ]


def reaching(*old: int) -> Story:
    story = Story("fc.weight").optimizer()
    for nodes in old:
        story.clear(1).backward(
            3, nodes=10 + nodes, old_nodes=nodes, old_site=site(2), retain=nodes > 0
        ).step(4)
    return story


def test_graphs_that_reach_farther_back_with_each_step() -> None:
    (found,) = reaching(0, 5, 10, 15, 20, 25).judged("GG601")
    assert (found.line, found.evidence["nodes"], found.evidence["old"]) == (2, 35, 25)


def test_graphs_of_bounded_length_are_right() -> None:
    assert reaching(0, 5, 10, 0, 5, 10, 0, 5).judged("GG601") == []
    assert reaching(5, 5, 5, 5, 5, 5).judged("GG601") == []


def test_graphs_that_grow_without_an_optimizer() -> None:
    def story(*nodes: int) -> Story:
        made = Story("fc.weight")
        for count in nodes:
            made.clear(1).backward(3, nodes=count, retain=True)
        return made

    (found,) = story(14, 22, 30, 38, 46).judged("GG601")
    assert (found.line, found.evidence["first"], found.evidence["nodes"]) == (3, 14, 46)
    assert story(14, 22, 30, 38, 46, 14, 22).judged("GG601") == []  # a new sequence


def chunks(*shared: int, windows: int = 2) -> Story:
    story = Story("fc.weight").optimizer()
    for _ in range(windows):
        story.clear(1)
        for count in shared:
            story.backward(3, nodes=10 + count, shared=count, retain=True)
        story.step(5)
    return story


def test_backward_calls_that_share_one_part_are_right() -> None:
    assert chunks(0, 8, 8, 8).judged("GG601") == []
    assert chunks(0, 8).judged("GG601") == []
    assert chunks(0, 8, 16, windows=1).judged("GG601") == []
