from dataclasses import replace

from gradgate.checker.reports import Held, report_on

# private: findings of one line and code are folded into one, whatever rule made them
from gradgate.checker.reports._report import merged
from tests.checker.reports.made import finding, log
from tests.checker.rules._build import Story


def test_the_same_mistake_of_several_ranks_is_one_finding() -> None:
    ranks = [
        (log(rank=rank, world=3), [finding("a.py", count=rank + 1)] if rank else []) for rank in range(3)
    ]
    (found,) = merged(ranks)
    assert found.count == 3  # as often as on the rank that made it most often
    assert found.evidence == {"windows": (1, 4, 4), "ranks": [1, 2]}


def test_processes_that_are_no_ranks_are_counted() -> None:
    (found,) = merged([(log(), [finding("a.py")]), (log(), [finding("a.py")])])
    assert found.evidence["processes"] == 2


def test_other_lines_and_other_codes_stay_apart_and_sorted() -> None:
    first, second = (
        [finding("b.py", 2), finding("a.py", 3)],
        [finding("a.py", 3, code="GG201"), finding("b.py", 2)],
    )
    assert [(each.file, each.line, each.code) for each in merged([(log(), first), (log(), second)])] == [
        ("a.py", 3, "GG101"),
        ("a.py", 3, "GG201"),
        ("b.py", 2, "GG101"),
    ]


def test_one_process_is_left_as_it_is() -> None:
    findings = [finding("b.py"), finding("a.py")]
    assert merged([(log(), findings)]) == findings


def test_a_summary_tells_what_each_optimizer_holds() -> None:
    summary = report_on([log(steps=2)]).summary
    assert (summary.steps, summary.backwards, summary.processes, summary.began) == (2, 2, 1, True)
    assert summary.optimizers == (Held("optimizer", "SGD", 2, 6),)
    assert summary.unowned == Held("", "", 1, 6)


REBOUND = """\
opt = torch.optim.SGD(net.parameters(), lr=0.1)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for net in nets:
    own = torch.optim.SGD(net.parameters(), lr=0.1)
other = make(torch.optim.SGD, net)
"""


def test_a_summary_tells_optimizers_of_one_variable_apart() -> None:
    story = Story("net.a", source=REBOUND)
    for line in (1, 2, 4, 4, 5):
        story.optimizer("", line=line)
    story.optimizers[1] = "opt"  # the only one that a step showed
    report = report_on([replace(story.log(), steps=1)])
    names = ["opt from train.py:1", "opt from train.py:2", "own", "own", "optimizer"]
    assert [held.name for held in report.summary.optimizers] == names
    assert "2 x own (SGD): 1 tensor, 2 parameters" in str(report)


def test_a_summary_of_several_processes_is_of_the_one_that_went_furthest() -> None:
    idle = log(steps=0)
    summary = report_on([idle, log(steps=2), log(steps=3)]).summary
    assert (summary.steps, summary.processes, summary.equal_counts) == (3, 2, False)
    assert not report_on([idle], outcome="failed").summary.began
    assert not report_on([], outcome="failed").summary.began
