"""Two kernels into one, where their loops can be the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lezero.graph.dim import same
from lezero.graph.node import Node
from lezero.schedule.group import MAX_NODES, Group, restore, saved
from lezero.schedule.reads import Access

if TYPE_CHECKING:
    from lezero.schedule.groups import Grouping


def merge_inputs(grouping: Grouping, group: Group, read: list[Access]) -> None:
    """Bring in other groups that a node just placed reads from, when they can be computed in the same loops."""
    if group.kind != "loops":
        return
    others = {grouping.group_of[a.node].number for a in read if a.node in grouping.group_of}
    for number in sorted(others):
        other = grouping.groups[number]
        if other is group or other.kind != "loops" or not other.nodes:
            continue
        if len(group.nodes) + len(other.nodes) > MAX_NODES:
            continue
        if not _merge(grouping, group, other) and _merge(grouping, other, group):
            group = other


def _merge(grouping: Grouping, group: Group, other: Group) -> bool:
    """Move everything of `other` into `group`; leaves both as they were if that does not work."""
    if other.outer:
        return False
    over_rows = not same(other.size, group.size)
    if over_rows and not _only_for(grouping, other, group):
        return False
    if not over_rows and other.reduced is not None and group.reduced is not None and other.style != group.style:
        return False
    if _between(grouping, group, other) or _between(grouping, other, group):
        return False
    before = saved(group), saved(other), [g.ancestors for g in grouping.groups]
    members = sorted(group.nodes + other.nodes, key=grouping.rank.__getitem__)
    fresh = Group(group.number, "loops", group.shape, group.variables)
    mine, theirs = list(group.nodes), list(other.nodes)
    for n in mine + theirs:
        del grouping.group_of[n]
    restore(group, saved(fresh))
    old_bit = other.bit
    restore(other, saved(Group(other.number, "loops", other.shape, other.variables)))
    both = old_bit | group.bit
    group.ancestors = (before[0][-1] | before[1][-1]) & ~both
    for g in grouping.groups:
        if g.ancestors & both:
            g.ancestors |= group.ancestors | group.bit
    if not _place_all(grouping, group, members):
        for m in mine + theirs:
            grouping.group_of.pop(m, None)
        restore(group, before[0])
        restore(other, before[1])
        for g, a in zip(grouping.groups, before[2]):
            g.ancestors = a
        for m in mine:
            grouping.group_of[m] = group
        for m in theirs:
            grouping.group_of[m] = other
        return False
    for g in grouping.groups:
        g.ancestors &= ~old_bit
    return True


def _between(grouping: Grouping, first: Group, last: Group) -> bool:
    """Whether another group needs the result of `first` and is needed for `last`."""
    bit = first.bit
    return bool(last.ancestors & bit) and any(
        g.ancestors & bit and last.ancestors & g.bit for g in grouping.groups if g is not first and g is not last
    )


def _only_for(grouping: Grouping, other: Group, group: Group) -> bool:
    """Whether nobody else will want what `other` computes: it may wait until all rows of `group` are done."""
    members = {*other.nodes, *group.nodes}
    return not any(n in grouping.outputs or grouping.readers(n) - members for n in other.nodes)


def _place_all(grouping: Grouping, group: Group, members: list[Node]) -> bool:
    """Join every member to an empty group, in an order that works: sums over rows fit once something else made rows."""
    left = members
    while left:
        waiting: list[Node] = []
        missing = set(left)
        for n in left:
            needs = {a.node for a in grouping.accesses(n, grouping.anywhere(n))}
            if needs & missing or grouping.try_join(group, n) is not None:
                waiting.append(n)
            else:
                missing.discard(n)
        if len(waiting) == len(left):
            return False
        left = waiting
    return True
